// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/sum_tree.h"

namespace moonhalo {
namespace {

int reversed(int bits, int count) {
  int result = 0;
  for (int i = 0; i < count; ++i) result |= (bits >> i & 1) << (count - 1 - i);
  return result;
}

int low_bits(int bits, int count) { return bits & ((1 << count) - 1); }

}  // namespace

SumTree::SumTree(int ranks) {
  while (2 << levels_ <= ranks) ++levels_;
  pairs_ = ranks - (1 << levels_);
}

SumPlan::SumPlan(int ranks) : tree_(ranks), direct_(ranks == 3 || ranks == 5 || ranks == 6), part_of_(ranks) {
  // In the end a rank has its own part, and behind it that of the rank whose values it went on with.
  for (int i = 0; i < 1 << tree_.levels(); ++i) {
    const int keeper = rank_at({false, 0, reversed(i, tree_.levels())}, tree_.levels());
    first_part_.push_back(static_cast<int>(order_.size()));
    order_.push_back(keeper);
    if (keeper < 2 * tree_.pairs()) order_.push_back(other_of_pair(keeper));
  }
  first_part_.push_back(static_cast<int>(order_.size()));
  for (int part = 0; part < ranks; ++part) part_of_[order_[part]] = part;
}

SumPlan::Place SumPlan::first_place(int rank) const {
  if (rank < 2 * tree_.pairs()) return {true, rank / 2, rank % 2};
  return {false, rank - tree_.pairs(), 0};
}

int SumPlan::rank_at(Place place, int level) const {
  for (;;) {
    auto& [of_pairs, block, bits] = place;
    if (of_pairs) return 2 * ((block << level) | (bits >> 1)) + (bits & 1);
    if (block << level >= tree_.pairs()) return tree_.first_rank((block << level) | bits);
    // It was in one of the two blocks that have become this one.
    --level;
    block = 2 * block + (bits >> level & 1);
    of_pairs = paired(block, level);
    if (!of_pairs) bits = low_bits(bits, level);
  }
}

// The rank that has what this rank of a pair has not, when their block is reduced with one without pairs.
int SumPlan::other_of_pair(int rank) const {
  Place place = first_place(rank);
  int level = 0;
  for (; paired(place.block ^ 1, level); ++level) {
    place.bits |= (place.block & 1) << (level + 1);
    place.block >>= 1;
  }
  place.bits ^= 1 << level;
  return rank_at(place, level);
}

PartRange SumPlan::parts(int bits, int count) const {
  const int begin = reversed(bits, count), width = tree_.levels() - count;
  return {first_part_[begin << width], first_part_[(begin + 1) << width]};
}

std::vector<SumStep> SumPlan::steps(int rank) const {
  std::vector<SumStep> steps;
  Place place = first_place(rank);
  auto& [of_pairs, block, bits] = place;
  if (of_pairs) {
    const bool first = bits == 0;
    const int other = rank + (first ? 1 : -1);
    steps.push_back({other, other, parts(1 - bits, 1), parts(bits, 1), first, /*raw=*/true});
  }
  bool gave_all = false;
  for (int level = 0; level < tree_.levels() && !gave_all; ++level) {
    const int side = block & 1;
    const bool other_of_pairs = paired(block ^ 1, level), first = side == 0, raw = level == 0;
    if (of_pairs == other_of_pairs) {
      const int known = level + (of_pairs ? 1 : 0), other = rank_at({of_pairs, block ^ 1, bits}, level);
      const PartRange sent = parts(bits | (1 - side) << known, known + 1);
      bits |= side << known;
      steps.push_back({other, other, sent, parts(bits, known + 1), first, raw && !of_pairs});
    } else if (other_of_pairs) {
      const int given = bits | (1 - side) << level;
      bits |= side << level;
      steps.push_back({rank_at({true, block ^ 1, given}, level), rank_at({true, block ^ 1, bits}, level),
                       parts(given, level + 1), parts(bits, level + 1), first});
    } else {
      const int other = rank_at({false, block ^ 1, low_bits(bits, level)}, level);
      const PartRange mine = parts(bits, level + 1);
      gave_all = (bits >> level & 1) != side;
      if (gave_all) {
        steps.push_back({.send_to = other, .sent = mine});
      } else {
        steps.push_back({.receive_from = other, .kept = mine, .first = first, .raw = raw});
      }
      of_pairs = false;
    }
    block >>= 1;
  }
  if (rank >= 2 * tree_.pairs()) return steps;
  const int other = other_of_pair(rank), part = part_of_[rank];
  if (gave_all) {
    steps.push_back({.receive_from = other, .kept = {part, part + 1}, .final = true});
  } else {
    steps.push_back({.send_to = other, .sent = {part + 1, part + 2}, .kept = {part, part + 1}, .final = true});
  }
  return steps;
}

}  // namespace moonhalo
