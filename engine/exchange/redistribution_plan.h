// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Says what a redistribution sums and moves, as all ranks know it. Mesh dims of one rank count as none.
struct RedistributionPlan {
  SpecPtr from, to;
  std::vector<int64_t> rank_in_target;  ///< by rank of the mesh of `from`

  std::vector<int64_t> partial_kept;     ///< mesh dims of `from`: Partial before and after
  std::vector<int64_t> partial_reduced;  ///< of `from`: Partial that ends
  std::vector<int64_t> partial_started;  ///< of `to`: Partial that begins; an element stays with one rank of each dim
  std::vector<int64_t> partial_seeded;   ///< the same where the order of reductions matters: it stays with the first
  std::vector<int64_t> replicated_dims;  ///< of `from`: their ranks hold copies, once the sums are made

  enum class Reduction : uint8_t { kNone, kAllReduce, kReduceScatter };
  Reduction reduction = Reduction::kNone;
  bool at_once = false;  ///< one reduction over the whole mesh instead of one per mesh dim

  bool keeps_blocks = false;                        ///< the cuts stay, and no rank keeps a share of its block alone
  std::vector<Box> box_after_reduce, required_box;  ///< by rank; left out if the blocks are kept
  bool moves = false;                               ///< whether one interval map follows the sums
  std::vector<int64_t> first_owner;                 ///< by rank: the first of those that hold the same copy
  /// Coordinates along partial_started, by first owner and required box: where the ranks that require it store an
  /// element.
  std::map<std::pair<int64_t, Box>, std::vector<int64_t>> chosen_holder;
  bool stays = false;  ///< a Partial begins, and all elements stay where they are

  /// Mesh dims of `from` that are reduced, the first to be reduced first.
  std::vector<int64_t> reduce_order() const;
  /// The ranks whose addends this rank's are summed with, sorted by reduce_order().
  std::vector<int64_t> addend_holders() const;
  /// A rank's coordinates along partial_started.
  std::vector<int64_t> started_at(int64_t rank) const;
  /// Mesh dims of `from` along which a rank serves only those with its own coordinate.
  std::vector<int64_t> same_coordinates() const;
  /// True if `user` takes what it requires of the box of `owner`.
  bool serves(int64_t owner, int64_t user) const;
  /// Several lines: the specs, the reductions, and per rank its boxes and whom it takes them from.
  std::string to_string() const;
};

/// ValueError, on every rank, when the meshes hold different ranks.
RedistributionPlan plan_redistribution(const SpecPtr& from, const SpecPtr& to);

}  // namespace moonhalo
