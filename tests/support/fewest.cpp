// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fewest.h"

#include <algorithm>
#include <limits>
#include <map>

namespace moonhalo::testing {
namespace {

bool holds(const ShardSpec& spec, int64_t rank, const std::vector<int64_t>& element) {
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    if (!spec.block_range(d, rank).contains(element[d])) return false;
  }
  return true;
}

}  // namespace

int64_t fewest_elements(const ShardSpec& from, const ShardSpec& to, const std::vector<int64_t>& there) {
  const DeviceMesh &mesh = *from.mesh(), &target = *to.mesh();
  std::vector<int64_t> stays, begins;
  int64_t addends = 1, total = 0;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const bool same = &mesh == &target && from.partial(m) == to.partial(m);
    if (from.partial(m) && same) stays.push_back(m);
    if (from.partial(m) && !same) addends *= mesh.size(m);
  }
  for (int64_t m = 0; m < target.ndim(); ++m) {
    const bool same = &mesh == &target && from.partial(m) == to.partial(m);
    if (to.partial(m) && !same && to.partial(m) != ReduceOp::kAvg) begins.push_back(m);
  }
  std::vector<int64_t> element(from.ndim());
  for (int64_t i = 0; i < from.global_numel(); ++i) {
    int64_t rest = i;
    for (int64_t d = from.ndim() - 1; d >= 0; --d) {
      element[d] = rest % from.global_shape()[d];
      rest /= from.global_shape()[d];
    }
    std::map<std::vector<int64_t>, std::map<std::vector<int64_t>, std::vector<int64_t>>> wanting;  // [stays][begins]
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      if (!holds(to, there[rank], element)) continue;
      std::vector<int64_t> a, b;
      for (const int64_t m : stays) a.push_back(mesh.coordinate(rank, m));
      for (const int64_t m : begins) b.push_back(target.coordinate(there[rank], m));
      wanting[a][b].push_back(rank);
    }
    for (const auto& [coordinate, choices] : wanting) {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (const auto& [choice, ranks] : choices) {
        const int64_t held =
            std::count_if(ranks.begin(), ranks.end(), [&](int64_t r) { return holds(from, r, element); });
        const auto count = static_cast<int64_t>(ranks.size());
        least = std::min(least, addends == 1 ? count - held : addends - 1 + count - (held > 0));
      }
      total += least;
    }
  }
  return total;
}

}  // namespace moonhalo::testing
