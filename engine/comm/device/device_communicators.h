// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// The ways in which tensors of devices are sent: through page-locked memory of the host, or by NCCL from device to
/// device.
enum class DeviceLink { kStaged, kNccl };

/// `host` for tensors of the CPU and all control traffic; tensors of `device` go by `link` (backend "staged" or
/// "nccl"). Tensors of any other device are refused. Not collective. `why`: of this link, for describe_transport.
/// `host` stays alive with it. NotImplementedError where there is no NCCL; its verbs throw CommError when a rank is
/// lost, at the first verb after that or at check_arrived.
CommunicatorPtr make_device_communicator(CommunicatorPtr host, c10::Device device,
                                         DeviceLink link = DeviceLink::kStaged, std::string why = "");
/// Describes how tensors of `group`'s ranks are sent, and why: "nccl: ...", "staged: ..."; the backend's name for
/// other groups.
std::string describe_transport(const Communicator& group);

/// The device of a group that make_device_communicator made, else nothing.
std::optional<c10::Device> device_of(const Communicator& group);
/// The group that such a group was made of; any other group itself.
CommunicatorPtr host_communicator(Communicator& group);

/// To be asked after the host has waited for a device and before it believes a number: CommError if messages that the
/// device waited for were given up. Not collective.
void check_arrived(const Communicator& group);

/// Sets whether reductions by NCCL add ranks in their order from now on, so that they have the bits of all other
/// backends; else (the default) NCCL adds sums, averages and products of numbers in an order of its own, rounding half
/// types at every step. All ranks set the same. Returns what was set before.
bool set_ordered_reductions(bool ordered);

}  // namespace moonhalo
