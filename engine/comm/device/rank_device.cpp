// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/rank_device.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_inv_ex.h>
#include <ATen/ops/ones.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "moonhalo/engine/base/boot_id.h"
#include "moonhalo/engine/comm/comm_context.h"
#include "moonhalo/engine/comm/stats_pause.h"

namespace moonhalo {
namespace {

std::string name_of(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

// A function of CUDA's own library, where LibTorch has brought that along.
std::string pci_address(c10::Device device) {
  if (!device.is_cuda()) return "";
  using GetAddress = int (*)(char* text, int length, int device);
  static const auto get_address = reinterpret_cast<GetAddress>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  std::array<char, 32> text{};
  const bool known = get_address != nullptr && get_address(text.data(), text.size() - 1, device.index()) == 0;
  return known ? text.data() : "";
}

std::atomic<DeviceAddress> address_of{pci_address};

// The first lines that ranks of one host have in common.
std::string host_text() { return this_host() + "\n" + boot_id() + "\n"; }

std::string place_of(c10::Device device) {
  const std::string address = address_of.load()(device);
  if (!address.empty()) return address;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return std::string(visible == nullptr ? "" : visible) + " " + std::to_string(device.index());
}

// Ranks that see the same devices give the same text; a launcher may show each rank devices of its own, by their
// numbers or by leaving none else.
std::string seen_from_here(c10::DeviceType type, int64_t count) {
  std::string text = host_text();
  for (int64_t i = 0; i < count; ++i) text += place_of(c10::Device(type, static_cast<c10::DeviceIndex>(i))) + "\n";
  return text + std::to_string(count);
}

std::string kept_text(c10::DeviceType type) {
  const auto& kept = comm_context->device;
  return kept && kept->type() == type ? place_of(*kept) : "";
}

// The same on all ranks: whether all of them have kept a device, and no two the same.
bool all_differ(const std::vector<std::string>& seen, const std::vector<std::string>& kept_by_rank) {
  std::set<std::pair<std::string, std::string>> known;
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (kept_by_rank[rank].empty() || !known.emplace(seen[rank], kept_by_rank[rank]).second) return false;
  }
  return true;
}

}  // namespace

void set_device_address(DeviceAddress address) { address_of = address == nullptr ? pci_address : address; }

std::string this_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::optional<c10::Device> parse_compute_device(const std::string& name) {
  try {
    const c10::Device device(name);
    if (device.is_cpu()) return c10::Device(c10::kCPU);
    if (at::isAccelerator(device.type())) return device;
  } catch (const c10::Error&) {
  }
  return std::nullopt;
}

int64_t device_count(c10::DeviceType type) {
  if (type == c10::kCPU) return 1;
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::VirtualGuardImpl(type).deviceCount();
}

c10::Device device_of_rank(Communicator& group, c10::Device required) {
  if (required.is_cpu() || required.has_index()) return required;
  if (group.size() == 1) return c10::impl::VirtualGuardImpl(required.type()).getDevice();
  const ScopedStatsPause set_up;
  const std::vector<std::string> all =
      group.all_gather_strings(seen_from_here(required.type(), device_count(required.type())));
  if (all_differ(all, group.all_gather_strings(kept_text(required.type())))) return *comm_context->device;
  std::map<std::string, int64_t> ranks;
  int64_t index = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t before = ranks[all[rank]]++;
    if (rank == group.rank()) index = before;
  }
  const std::string type = name_of(required.type());
  for (const auto& [shared, count] : ranks) {
    const std::string host = shared.substr(0, shared.find('\n'));
    const int64_t devices = std::stoll(shared.substr(shared.rfind('\n') + 1));
    TORCH_CHECK_VALUE(count <= devices, "device \"", type, "\": ", count, " ranks for ", devices, " devices on ", host,
                      "\n  have  ", group.size(), " ranks, ", count, " of them on ", host,
                      "\n  fix   start no more ranks on a host than it has devices, or name a device by its number (\"",
                      type, ":0\"), which ranks may share");
  }
  return comm_context->device.emplace(required.type(), static_cast<c10::DeviceIndex>(index));
}

int64_t count_before(const std::vector<std::string>& hosts, int rank) {
  return std::count(hosts.begin(), hosts.begin() + rank, hosts.at(rank));
}

int64_t local_rank(Communicator& group) {
  const ScopedStatsPause set_up;
  return count_before(group.all_gather_strings(host_text()), group.rank());
}

std::string place_of_device(c10::Device device) { return host_text() + place_of(device); }

std::string shared_device_name(Communicator& group, c10::Device own, std::string named) {
  const ScopedStatsPause set_up;
  at::Tensor numbers = at::empty({3}, at::kLong);
  int64_t* const number = numbers.mutable_data_ptr<int64_t>();
  number[0] = own.index();
  number[1] = -own.index();
  number[2] = named != own.str();
  group.all_reduce(numbers, ReduceOp::kMax);
  if (number[2] != 0) return named;
  return number[0] == -number[1] ? own.str() : name_of(own.type());
}

void use_device(c10::Device device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

void load_linear_algebra(c10::Device device) {
  static std::once_flag loaded;
  std::call_once(loaded, [&] { at::linalg_inv_ex(at::ones({1, 1}, device)); });
}

}  // namespace moonhalo
