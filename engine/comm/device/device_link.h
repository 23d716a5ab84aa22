// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "moonhalo/engine/comm/device/device_communicators.h"

namespace moonhalo {

/// Sets how tensors of devices are sent in the meshes that this rank makes from now on: "nccl", "staged", or "" for
/// what fits. All ranks say the same. ValueError for other names.
void set_device_link(const std::string& name);
/// True for the names of links, "nccl" and "staged".
bool is_device_link(const std::string& name);

/// The link of a group of devices, and why it is that one, for people.
struct LinkChoice {
  DeviceLink link;
  std::string why;
};
/// NCCL where every rank has it and a device of its own, else staged, with a warning once. Where set_device_link
/// says "nccl" and it cannot be, NotImplementedError (a rank lacks it) or ValueError (two ranks share a device), on
/// all ranks. Collective over `host`.
LinkChoice choose_device_link(Communicator& host, c10::Device device);

/// Some words on what choose_device_link can choose on this machine, for `moonhalo env`.
std::string describe_device_links();

}  // namespace moonhalo
