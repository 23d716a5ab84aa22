// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace moonhalo {

/// The order in which the values of ranks are reduced: the same for every element, whatever its place and owner, and
/// for every backend, so that all give the same bits. A binary tree over the ranks in their order. Its 2^levels leaves,
/// the most that ranks suffice for, are one rank each, but the first `pairs` of two: of 5 ranks ((0 + 1) + 2) + (3 +
/// 4).
class SumTree {
 public:
  explicit SumTree(int ranks);

  int levels() const { return levels_; }
  int pairs() const { return pairs_; }
  /// The first rank of a leaf; for leaf 2^levels the number of ranks.
  int first_rank(int leaf) const { return leaf < pairs_ ? 2 * leaf : leaf + pairs_; }

 private:
  int levels_ = 0, pairs_ = 0;
};

/// Parts from `begin` to `end`.
struct PartRange {
  int begin = 0, end = 0;
};

/// One round of a rank in a reduce-scatter along the tree: at most one message each way.
struct SumStep {
  int send_to = -1, receive_from = -1;  ///< ranks; -1: none
  PartRange sent, kept;                 ///< what leaves, and what this rank has afterwards and receives values for
  bool first = false;                   ///< this rank's values are the first operand
  bool raw = false;                     ///< what comes are one rank's own values, of the tensor's dtype
  bool final = false;                   ///< what is sent has been reduced over all ranks and belongs to the receiver
};

/// A reduce-scatter along the tree, by recursive halving: neighbours first, then pairs of neighbours, and so on, so
/// that long messages stay within a host. Parts are numbered in an order of their owners in which every message is
/// a run of parts. Ranks of paired leaves halve their parts once more; where such a part of the tree is reduced
/// with one without pairs, one rank of each pair gives away what it has, and is given its own part at the end. So a
/// rank sends at most ceil(log2 ranks) messages and no element twice, except that those who give all away send
/// their own part, too, which comes back.
class SumPlan {
 public:
  explicit SumPlan(int ranks);

  const SumTree& tree() const { return tree_; }
  int ranks() const { return static_cast<int>(order_.size()); }
  /// The owner of each part, and the part of each rank.
  const std::vector<int>& order() const { return order_; }
  const std::vector<int>& part_of() const { return part_of_; }
  std::vector<SumStep> steps(int rank) const;
  /// True with 3, 5 and 6 ranks: a message to each owner is then better than the steps, which send more.
  bool direct() const { return direct_; }

 private:
  /// Where a rank is: in a block of 2^level leaves. Its values are of the parts whose numbers begin with `bits`, lowest
  /// bit first: one more of them where the block is of pairs alone.
  struct Place {
    bool paired;
    int block, bits;
  };
  Place first_place(int rank) const;
  bool paired(int block, int level) const { return (block + 1) << level <= tree_.pairs(); }
  int rank_at(Place place, int level) const;
  int other_of_pair(int rank) const;
  PartRange parts(int bits, int count) const;

  SumTree tree_;
  bool direct_;
  std::vector<int> order_, part_of_, first_part_;
};

}  // namespace moonhalo
