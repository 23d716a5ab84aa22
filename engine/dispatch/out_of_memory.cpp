// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/out_of_memory.h"

#include <algorithm>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/profile/memory_note.h"

namespace moonhalo {

void throw_with_blocks(const c10::OutOfMemoryError& error, const std::string& op, const std::vector<SpecPtr>& tensors) {
  const ShardSpec* large = nullptr;
  for (const SpecPtr& tensor : tensors) {
    if (tensor && (large == nullptr || tensor->global_numel() > large->global_numel())) large = tensor.get();
  }
  std::string text = error.msg();
  if (large != nullptr) {
    const int64_t ranks = large->mesh()->size(), mine = large->mesh()->rank();
    std::vector<int64_t> elements;
    for (int64_t rank = 0; rank < ranks; ++rank) elements.push_back(block_box(*large, rank).numel());
    const auto most = std::max_element(elements.begin(), elements.end());
    text += "\n  have  " + op + " of " + large->to_string() + "; rank " + std::to_string(mine) + " has " +
            std::to_string(elements[mine]) + " of its elements, the largest block is rank " +
            std::to_string(most - elements.begin()) + "'s, of " + std::to_string(*most) + memory_note() +
            "\n  fix   cut it over more ranks or evenly, or take a smaller batch";
  }
  throw c10::OutOfMemoryError(text, error.backtrace(), error.caller());
}

}  // namespace moonhalo
