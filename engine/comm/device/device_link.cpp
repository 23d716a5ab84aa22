// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/device_link.h"

#include <c10/util/Exception.h>

#include <map>
#include <sstream>
#include <vector>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/comm/device/nccl_api.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/comm/stats_pause.h"

namespace moonhalo {
namespace {

// The facts of one rank as all ranks receive them. None of the three contains the character between them.
constexpr char kBetween = '\x1f';

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, kBetween);) parts.push_back(part);
  parts.resize(3);
  return parts;
}

// Empty where NCCL can carry tensors of this device.
std::string why_no_nccl(c10::Device device) {
  const NcclFound& found = find_nccl();
  if (found.api == nullptr) return found.text;
  if (found.api->device_type != device.type()) return "nccl carries no tensors of " + device.str();
  return "";
}

}  // namespace

bool is_device_link(const std::string& name) { return name == "nccl" || name == "staged"; }

void set_device_link(const std::string& name) {
  TORCH_CHECK_VALUE(name.empty() || is_device_link(name), "device link: unknown name \"", name, "\"\n  have  \"", name,
                    "\"\n  fix   use \"nccl\", \"staged\", or \"\" for what fits");
  base_context->settings.device_link = name;
}

LinkChoice choose_device_link(Communicator& host, c10::Device device) {
  if (host.size() == 1) return {DeviceLink::kStaged, "one rank sends nothing"};
  const ScopedStatsPause set_up;
  const std::string mine = settings().device_link + kBetween + why_no_nccl(device) + kBetween + place_of_device(device);
  const std::vector<std::string> all = host.all_gather_strings(mine);
  const std::string required = split(all[0])[0];
  std::string lacks, shared;
  std::map<std::string, int> rank_of_device;
  for (int rank = 0; rank < host.size(); ++rank) {
    const std::vector<std::string> facts = split(all[rank]);
    TORCH_CHECK_VALUE(facts[0] == required, "device link: ranks 0 and ", rank, " want different ones\n  have  \"",
                      required, "\" and \"", facts[0], "\"\n  fix   give the same --backend on all ranks");
    if (lacks.empty() && !facts[1].empty()) lacks = "rank " + std::to_string(rank) + ": " + facts[1];
    const auto [other, first] = rank_of_device.emplace(facts[2], rank);
    if (shared.empty() && !first)
      shared = "ranks " + std::to_string(other->second) + " and " + std::to_string(rank) + " share a device";
  }
  if (required == "staged") return {DeviceLink::kStaged, "it was asked for"};
  if (lacks.empty() && shared.empty()) return {DeviceLink::kNccl, find_nccl().text};
  if (required == "nccl") {
    TORCH_CHECK_NOT_IMPLEMENTED(lacks.empty(), "device link: \"nccl\" cannot be used here\n  have  ", lacks,
                                "\n  fix   install NCCL, name its file in MOONHALO_NCCL, or take --backend staged");
    TORCH_CHECK_VALUE(false, "device link: \"nccl\" needs a device for each rank\n  have  ", shared,
                      "\n  fix   start no more ranks on a host than it has devices, or take --backend staged");
  }
  const std::string why = lacks.empty() ? shared : lacks;
  if (host.rank() == 0) {
    TORCH_WARN_ONCE("Tensors of devices are sent through memory of the host, not by NCCL: ", why,
                    ". Take --backend staged where that is meant.");
  }
  return {DeviceLink::kStaged, why};
}

std::string describe_device_links() {
  const NcclFound& found = find_nccl();
  if (found.api == nullptr) return "staged, through memory of the host: " + found.text;
  return found.text + " where each rank has a device of its own; else staged, through memory of the host";
}

}  // namespace moonhalo
