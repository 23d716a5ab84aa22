// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/device_communicators.h"

#include <c10/util/Exception.h>

#include <utility>

#include "moonhalo/engine/comm/device/device_communicator.h"

namespace moonhalo {
namespace {

const DeviceCommunicator* as_device(const Communicator& group) {
  return dynamic_cast<const DeviceCommunicator*>(&group);
}

}  // namespace

CommunicatorPtr make_device_communicator(CommunicatorPtr host, c10::Device device, DeviceLink link, std::string why) {
  TORCH_CHECK_VALUE(!device.is_cpu() && device.has_index(), "device communicator: ", device,
                    " is not a device of its own\n  have  ", device, "\n  fix   name one by its number, as in cuda:0");
  const auto made = link == DeviceLink::kNccl ? make_nccl_communicator(std::move(host), device)
                                              : make_staged_communicator(std::move(host), device);
  made->set_why(std::move(why));
  return made;
}

std::string describe_transport(const Communicator& group) {
  const DeviceCommunicator* known = as_device(group);
  return known == nullptr || known->why().empty() ? group.backend() : group.backend() + (": " + known->why());
}

std::optional<c10::Device> device_of(const Communicator& group) {
  const DeviceCommunicator* known = as_device(group);
  return known != nullptr ? std::optional(known->device()) : std::nullopt;
}

CommunicatorPtr host_communicator(Communicator& group) {
  const DeviceCommunicator* known = as_device(group);
  return known != nullptr ? known->host() : group.shared_from_this();
}

void check_arrived(const Communicator& group) {
  if (const DeviceCommunicator* known = as_device(group)) known->check_arrived();
}

}  // namespace moonhalo
