// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/rank_device.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>

#include "moonhalo/engine/comm/uncounted.h"

namespace moonhalo {
namespace {

// Names of hosts repeat in containers and virtual machines; the number of a boot does not.
std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}
std::string boot() {
  std::string number;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), number);
  return number;
}

// Ranks that see the same devices give the same text; a launcher may show each rank devices of its own.
std::string shared_devices(int64_t count) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return host_name() + "\n" + boot() + "\n" + (visible == nullptr ? "" : visible) + "\n" + std::to_string(count);
}

}  // namespace

std::optional<c10::Device> parse_compute_device(const std::string& name) {
  try {
    const c10::Device device(name);
    if (device.is_cpu() || at::isAccelerator(device.type())) return device;
  } catch (const c10::Error&) {
  }
  return std::nullopt;
}

int64_t device_count(c10::DeviceType type) {
  if (type == c10::kCPU) return 1;
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::VirtualGuardImpl(type).deviceCount();
}

c10::Device device_of_rank(Communicator& group, c10::Device wanted) {
  if (wanted.is_cpu() || wanted.has_index()) return wanted;
  if (group.size() == 1) return c10::impl::VirtualGuardImpl(wanted.type()).getDevice();
  const Uncounted set_up;
  const std::vector<std::string> all = group.all_gather_strings(shared_devices(device_count(wanted.type())));
  std::map<std::string, int64_t> ranks;
  int64_t index = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t before = ranks[all[rank]]++;
    if (rank == group.rank()) index = before;
  }
  for (const auto& [shared, count] : ranks) {
    const std::string host = shared.substr(0, shared.find('\n'));
    const int64_t devices = std::stoll(shared.substr(shared.rfind('\n') + 1));
    TORCH_CHECK_VALUE(count <= devices, "device \"", c10::DeviceTypeName(wanted.type(), /*lower_case=*/true), "\": ", count,
                      " ranks for ", devices, " devices on ", host, "\n  have  ", group.size(), " ranks, ", count,
                      " of them on ", host, " and none with a device of its own left for some",
                      "\n  fix   start no more ranks on a host than it has devices, or name a device by its number (\"",
                      c10::DeviceTypeName(wanted.type(), true), ":0\"), which ranks may share");
  }
  return c10::Device(wanted.type(), static_cast<c10::DeviceIndex>(index));
}

std::string shared_device_name(Communicator& group, c10::Device device) {
  const Uncounted set_up;
  at::Tensor numbers = at::empty({2}, at::kLong);
  int64_t* const number = numbers.mutable_data_ptr<int64_t>();
  number[0] = device.index();
  number[1] = -device.index();
  group.all_reduce(numbers, ReduceOp::kMax);
  if (number[0] == -number[1]) return device.str();
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

void use_device(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace moonhalo
