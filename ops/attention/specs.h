// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Divides the work among ranks of which each holds a block of queries and a block of keys.
///
///                keys of 0   1   2            x  computed by the owner of the queries: the keys are sent
///     queries 0       x      .   .            o  computed by the owner of the keys: queries are sent, results return
///     of      1       ox     x   .            .  masked (causal): neither computed nor sent
///             2       oo     ox  x
///
/// The first queries of i that see keys of j are sent to j, and the rest stay with i. Without causality a pair
/// stays or is sent as a whole, whatever moves fewer elements. With it the ranks differ in work (of P equal blocks, the
/// last has 2 P - 1 times the work of the first), so the rank with the most sends to that with the least, or no longer
/// computes those of others, until all have their share, as nearly as whole rows allow. A rank's own queries against
/// its own keys stay where they are, so a block of more than its share keeps that; and what does not relieve the
/// rank with the most by 5 % is not done.
class AttentionWork {
 public:
  /// Elements that are sent: for a query and its result if it is sent, for a row of keys and values if it is not.
  struct Extents {
    double query = 1, keys = 1, result = 1;
  };
  /// Blocks by position in the ring, as rows of the whole sequences. `may_send` is false where queries would have
  /// to be sent with rows of a mask.
  AttentionWork(std::vector<Interval> queries, std::vector<Interval> keys, bool is_causal, bool may_send,
                Extents extents);

  int64_t size() const { return static_cast<int64_t>(queries_.size()); }
  Interval queries(int64_t i) const { return queries_[i]; }
  /// Queries of i that are multiplied by keys of j at i, and those that are multiplied at j. Empty where nothing
  /// is to be done.
  Interval local_queries(int64_t i, int64_t j) const;
  Interval sent_queries(int64_t i, int64_t j) const;
  /// The keys of j that any of these queries sees.
  Interval seen(const Interval& rows, int64_t j) const;
  /// Scores that a member computes.
  double load(int64_t member) const;
  /// A number for each step of member `i`, the same one for steps in which it does the same but with other members. In
  /// a causal ring the places of blocks decide, too: then there are none.
  std::vector<int64_t> kinds_of_steps(int64_t i) const;
  /// Pairs of ranks that were looked at to balance the work: what the search costs.
  int64_t pairs_tried() const { return pairs_tried_; }

 private:
  double scores(const Interval& rows, int64_t j) const;
  Interval seeing(int64_t i, int64_t j) const;
  int64_t cheaper_split(int64_t i, int64_t j) const;
  /// Where the queries of i that are sent to j end and local ones begin.
  int64_t split(int64_t i, int64_t j) const { return split_.empty() ? cheaper_split(i, j) : split_[i][j]; }
  bool can_move(int64_t from, int64_t to) const;
  double move(int64_t from, int64_t to, double scores_to_move);
  void balance();

  std::vector<Interval> queries_, keys_;
  bool is_causal_, may_send_;
  Extents extents_;
  std::vector<std::vector<int64_t>> split_;  // [i][j]; empty: the cheaper ones
  mutable int64_t pairs_tried_ = 0;
};

/// Specs of the tensors of an attention, all by where their dims are cut.
///     query [lead.., queries, features]   key [lead.., keys, features]   value [lead.., keys, value features]
/// A mesh dim that cuts queries and keys forms a ring: every block of queries is multiplied by every block of keys. One
/// that cuts the keys alone merges what its ranks have seen; one that cuts the queries alone needs nothing (its ranks
/// share work if it is causal).
struct AttentionSpecs {
  SpecPtr query, key, value, output, logsumexp;  ///< nothing Partial
  SpecPtr mask;                                  ///< null: none
};

/// The elements a rank has to send to bring tensors of these specs to those, and for the attention itself: an estimate.
double attention_cost(const AttentionSpecs& from, const AttentionSpecs& to);

/// The cheapest of the cuts that the tensors bring; of equals the finest. Given: query, key, value and, if there is
/// one, mask, as the caller holds them, of shapes that match (see above; heads, the last of lead, may be fewer in key
/// and value).
AttentionSpecs choose_attention_specs(const AttentionSpecs& given);

/// Mesh dims of the cuts of one dim that also cut the other, and that do not.
std::vector<int64_t> mesh_dims_of_both(const Cut& one, const Cut& other);
std::vector<int64_t> mesh_dims_of_one(const Cut& one, const Cut& other);

}  // namespace moonhalo
