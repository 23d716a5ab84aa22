// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

struct RedistributionPlan;

/// Converts a local block from one spec to another of the same global shape: any placements to any others, on the same
/// mesh or on another mesh of the same ranks. Six rows over 3 ranks, from Shard(0, {2, 2, 2}) to Shard(0, {1, 2, 3}):
///
///     rank      0      1      2
///     from      0 1    2 3    4 5          row 1 from rank 0 to rank 1, row 3 from rank 1 to rank 2;
///     to        0      1 2    3 4 5        each rank copies its other rows
///
/// There are up to three steps:
///
///     Partial dims that end     reduce-scatter: each element is reduced once, on the rank that needs it
///     all other changes         one interval map: each rank receives the rows that it needs and does not hold
///     Partial dims that begin   one rank keeps the value of an element, the others hold the identity element
///
/// A Partial that becomes Replicate everywhere is one all-reduce. With P addends of an element and K ranks that need
/// it, these elements are sent: none to a rank that holds the element already; P - 1 + K - 1 if there is a reduction
/// (one more if no rank that holds an addend needs the element). The cases K = 1 and K = P are reduce-scatter, (P-1)/P
/// of the data per rank, and all-reduce, 2(P-1)/P, as in R. Thakur, R. Rabenseifner, W. Gropp, Optimization of
/// Collective Communication Operations in MPICH, 2005. Nested Partials that do not commute (a sum of maxima) are
/// reduced from the last mesh dim to the first.
///
/// A Redistribution can be applied many times. Every rank plans it from facts that all ranks hold
/// (redistribution_plan.h). The first one between two meshes is collective over both.
class Redistribution {
 public:
  /// Throws ValueError on every rank if the meshes hold different ranks.
  Redistribution(SpecPtr from, SpecPtr to);
  /// Returns the block of `to`; it may be `local` itself or a view of it. Collective over the mesh if anything moves.
  /// The data moved counts as `traffic`.
  at::Tensor apply(const at::Tensor& local, Traffic traffic = Traffic::kRedistribute) const;

  /// Does the same as apply in two steps. Rows that need no reduction are sent between start and finish.
  class Pending;
  Pending start(const at::Tensor& local, Traffic traffic = Traffic::kRedistribute) const;

  const SpecPtr& from() const { return from_; }
  const SpecPtr& to() const { return to_; }

 private:
  struct Reduce {
    CommunicatorPtr group;
    ReduceOp op;
    std::vector<int64_t> counts;  // elements that each rank of the group keeps; empty: all-reduce
  };
  struct Part {  // of the local block, in the order of the ranks that will keep it
    std::vector<int64_t> start, length;
  };
  static std::vector<Reduce> reduces_of(const RedistributionPlan& plan);
  static std::vector<Part> parts_of(const RedistributionPlan& plan);
  static std::shared_ptr<const IntervalMap> map_of(const RedistributionPlan& plan);
  at::Tensor reduced(const at::Tensor& local) const;
  static at::Tensor all_reduced(const at::Tensor& local, const Reduce& reduce);
  std::optional<int64_t> split_dim(const at::Tensor& local) const;

  SpecPtr from_, to_;
  std::vector<Part> parts_;
  std::vector<int64_t> kept_shape_;  // of the block after the reduce-scatters
  std::vector<Reduce> reduces_;
  std::shared_ptr<const IntervalMap> map_;  // null if every rank has the elements that it needs
  std::optional<ReduceOp> fill_;            // its identity element is stored where a rank holds no addend
  std::optional<ReduceOp> seed_;            // this rank's whole block is the identity element of this
};

class Redistribution::Pending {
 public:
  /// Waits and returns the block.
  at::Tensor finish();

 private:
  friend class Redistribution;
  std::shared_ptr<const IntervalMap> map_;
  std::unique_ptr<PendingGather> under_way_;
  at::Tensor block_;
  std::optional<ReduceOp> seed_;
};

/// Converts the local block of `from` to the local block of `to`. The Redistribution is not cached. Collective over the
/// mesh if anything moves.
at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to,
                              Traffic traffic = Traffic::kRedistribute);

/// Returns the estimated number of elements that each rank sends, equal on all ranks, for choosing between plans. Both
/// specs are on one mesh. Gathering stored dims (Placement::stored) costs next to nothing, so that it is always
/// preferred to moving another tensor.
double redistribution_cost(const ShardSpec& from, const ShardSpec& to);

}  // namespace moonhalo
