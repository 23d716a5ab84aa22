// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// In a redistribution over thousands of ranks every rank copies a region for each of the others. In a dry run such
/// copies compute nothing, and take as long as all else of a script. A recorder that only counts them is as well served
/// by one copy and their number. Nothing of this file is collective.

/// While it exists, exchanges of this rank make one copy for all peers in a row whose regions have the same shapes, if
/// tensors are fake and the ranks are, too. Messages, bytes and memory stay the same.
class JoinEqualCopies {
 public:
  JoinEqualCopies();
  /// True while this rank has one, if the ranks of `group` are fake.
  static bool applies_to(const Communicator& group);

 private:
  ScopedValue<bool> joins_;
};

/// While it exists, an operator that this rank calls stands for `calls` of the same shapes.
class EqualCopies {
 public:
  explicit EqualCopies(int64_t calls);
  /// The number of calls that one stands for now; 1 outside of such a scope.
  static int64_t current();

 private:
  ScopedValue<int64_t> calls_;
};

/// While it exists, recorders see `calls` calls for each of this rank, or none: the first of equal calls stands for
/// all.
class SeenAs {
 public:
  explicit SeenAs(int64_t calls) : calls_(calls) {
    if (calls == 0) unseen_.emplace();
  }

 private:
  EqualCopies calls_;
  std::optional<at::DisableRecordFunctionGuard> unseen_;
};

/// The number of calls that those for each of the first `ranks` ranks stand for (SeenAs), where copies are joined: the
/// first of the ranks with equal sizes stands for all of them. Else 1 for each. `sizes_of(rank)`: a list of sizes.
template <typename SizesOf>
std::vector<int64_t> calls_by_rank(const Communicator& group, int ranks, const SizesOf& sizes_of) {
  std::vector<int64_t> calls(ranks, 1);
  if (ranks == 1 || !JoinEqualCopies::applies_to(group)) return calls;
  std::map<std::vector<int64_t>, int> first;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto [found, is_new] = first.try_emplace(sizes_of(rank), rank);
    if (is_new) continue;
    ++calls[found->second];
    calls[rank] = 0;
  }
  return calls;
}

}  // namespace moonhalo
