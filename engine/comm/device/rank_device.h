// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// "cpu" (also for "cpu:0"), "cuda", "cuda:1", or another device of LibTorch; nothing for other strings, and for
/// "meta".
std::optional<c10::Device> parse_compute_device(const std::string& name);
/// The name of this machine.
std::string this_host();
/// Counts the devices of this type that can be used here.
int64_t device_count(c10::DeviceType type);

/// Returns the device that this rank computes on where `required` is requested. With a number it is that one, which
/// ranks may share. Without, each rank of a host gets a device of its own: the one that it got before, in a larger
/// group, if all have one; else those that see the same devices get them in rank order. A group of one keeps the
/// device of its thread. ValueError on every rank when devices are too few. Collective; the ranks of a host may be
/// processes or threads.
c10::Device device_of_rank(Communicator& group, c10::Device required);

/// Counts the ranks before `rank` that have the same text as it, the name of a host.
int64_t count_before(const std::vector<std::string>& hosts, int rank);
/// The number of this rank among those of its host, in their order. Collective.
int64_t local_rank(Communicator& group);

/// Gives an address that a device has for all processes of a host, "" where there is none. CUDA's PCI addresses, unless
/// tests set another; null: those again.
using DeviceAddress = std::string (*)(c10::Device device);
void set_device_address(DeviceAddress address);

/// A string that is equal on two ranks if `device` is the same one of the same host for both.
std::string place_of_device(c10::Device device);

/// For init_device_mesh, where each rank names a device: if every rank names its own, the name of them all, with a
/// number if they have the same one, "cuda:0", else "cuda"; otherwise `named` as it is. Collective.
std::string shared_device_name(Communicator& group, c10::Device own, std::string named);

/// Makes `device` the one of this thread. A backward pass then stays on the calling thread, because a thread of the
/// device would serve all its ranks, and a collective in it would wait for itself.
void use_device(c10::Device device);

/// Loads LibTorch's linear algebra for CUDA, once in a process. LibTorch loads it at the first call of an operator and
/// is not prepared for two threads that call one at once, so ranks that are threads load it before they begin.
void load_linear_algebra(c10::Device device);

}  // namespace moonhalo
