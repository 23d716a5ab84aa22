// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/size_text.h"

#include <cstdint>
#include <map>

#include "moonhalo/engine/base/text.h"

namespace moonhalo {
namespace {

constexpr size_t kMostSizes = 16, kMostCounts = 6;

}  // namespace

std::string sizes_text(c10::IntArrayRef sizes) {
  if (sizes.size() <= kMostSizes) return list_string(sizes, '{', '}');
  std::map<int64_t, int64_t> ranks_of_size;
  for (const int64_t size : sizes) ++ranks_of_size[size];
  if (ranks_of_size.size() > kMostCounts)
    return "{" + std::to_string(ranks_of_size.begin()->first) + " to " + std::to_string(ranks_of_size.rbegin()->first) +
           " rows on " + std::to_string(sizes.size()) + " ranks}";
  std::string text;
  for (const auto& [size, ranks] : ranks_of_size) {
    const bool is_first = text.empty();
    text += (is_first ? "" : ", ") + std::to_string(size) + (is_first ? " rows on " : " on ") + std::to_string(ranks) +
            (is_first ? " ranks" : "");
  }
  return "{" + text + "}";
}

}  // namespace moonhalo
