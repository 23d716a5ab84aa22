// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/machine.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "moonhalo/engine/base/usable_cores.h"

namespace moonhalo {

double at_size(const SizeTable& table, double size) {
  TORCH_INTERNAL_ASSERT(!table.empty());
  if (size <= table.front().first || table.size() == 1) return table.front().second;
  size_t next = 1;
  while (next + 1 < table.size() && table[next].first < size) ++next;
  const auto [from, before] = table[next - 1];
  const auto [to, after] = table[next];
  const double slope = (after - before) / (to - from);
  if (size > to) return after + std::max(slope, 0.0) * (size - to);
  return before + slope * (size - from);
}

double Machine::flops(const std::string& work, const std::string& dtype) const {
  const auto found = device.flops.find(work);
  if (found == device.flops.end()) return 0;
  for (const std::string& key : {dtype, std::string()}) {
    const auto rate = found->second.find(key);
    if (rate != found->second.end()) return rate->second * device.efficiency;
  }
  // For a dtype that the file leaves out, the slowest one is the safe guess.
  double least = 0;
  for (const auto& [known, rate] : found->second) least = least == 0 ? rate : std::min(least, rate);
  return least * device.efficiency;
}

double Machine::bandwidth(double bytes) const {
  for (const auto& [largest, rate] : device.bandwidth) {
    if (bytes <= largest) return rate * device.efficiency;
  }
  return device.bandwidth.empty() ? 0 : device.bandwidth.back().second * device.efficiency;
}

double Machine::slowdown(const std::string& work, double busy) const {
  SizeTable factors{{1, 1}};
  for (const auto& [cores, by_work] : neighbours) {
    const auto found = by_work.find(work);
    if (found != by_work.end() && cores > 1) factors.emplace_back(static_cast<double>(cores), found->second);
  }
  return at_size(factors, std::min(busy, factors.back().first));
}

double Machine::lateness(double worked, int64_t ranks) const {
  return ranks > 1 ? device.jitter * worked * std::sqrt(2 * std::log(static_cast<double>(ranks))) : 0;
}

size_t Machine::level_of(int64_t rank, int64_t other) const {
  for (size_t level = 0; level + 1 < levels.size(); ++level) {
    if (rank / levels[level].ranks == other / levels[level].ranks) return level;
  }
  return levels.size() - 1;
}

int64_t Machine::ranks_of_part(size_t level, int64_t world) const {
  const int64_t ranks = levels.at(level).ranks;
  return ranks == 0 ? world : std::min(ranks, world);
}

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.find(": ") + 2, line.size()));
  }
  return "unknown";
}

int64_t host_memory() { return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

bool is_this_host(const Machine& machine) {
  const std::string& processor = machine.host.processor;
  return machine.measured && machine.host.cores == usable_core_count() &&
         (processor.empty() || processor == processor_model());
}

bool is_bound_to_part(const Machine& machine, int processes) {
  return machine.measured && processes > 1 && usable_core_count() < machine.host.cores &&
         machine.host.processor == processor_model();
}

void check_is_this_host(const Machine& machine, const std::string& where) {
  TORCH_CHECK_VALUE(machine.measured, "machine file '", where, "': it was not measured on this machine\n  have  '",
                    machine.name, "', written by hand\n  fix   run `moonhalo calibrate FILE` here, and give that FILE");
  const int64_t cores = usable_core_count();
  TORCH_CHECK_VALUE(machine.host.cores == cores, "machine file '", where, "': it was measured on ", machine.host.cores,
                    machine.host.cores == 1 ? " core" : " cores", ", this process may use ", cores, "\n  have  '",
                    machine.name, "', made ", machine.made,
                    "\n  fix   run `moonhalo calibrate FILE` here, and give that FILE");
  TORCH_CHECK_VALUE(is_this_host(machine), "machine file '", where, "': it was measured on another processor",
                    "\n  have  '", machine.host.processor, "', here is '", processor_model(),
                    "'\n  fix   run `moonhalo calibrate FILE` here, and give that FILE");
}

}  // namespace moonhalo
