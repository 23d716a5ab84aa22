// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// `host` for tensors of the CPU and all control traffic; tensors of `device` go through memory of the host ("staged").
/// Tensors of any other device are refused. Not collective. `host` stays alive with it.
CommunicatorPtr make_device_communicator(CommunicatorPtr host, c10::Device device);

/// The device of a group that make_device_communicator made, else nothing.
std::optional<c10::Device> device_of(const Communicator& group);
/// The group that such a group was made of; any other group itself.
CommunicatorPtr host_part(Communicator& group);

}  // namespace moonhalo
