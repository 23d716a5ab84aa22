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

/// Takes a local block from one spec to another of the same global shape: any placement to any other, any cut to any
/// other, on the same mesh or on another mesh of the same ranks. Three steps, the last two only where they are needed:
///
///     Partial dims that end     reduce-scatter: every element is summed where it is wanted, once
///     everything else           one interval map: each rank receives what it needs and does not hold
///     Partial dims that begin   an element's value stays on the rank that has it, others hold the neutral value
///
/// A Partial that only becomes Replicate is one all-reduce. Elements that travel, with P addends of an element and K
/// ranks that want it: none for a rank that holds it; P - 1 + K - 1 if there is a sum to be made (one more if no rank
/// wants the element that holds an addend); reduce-scatter (P-1)/P and all-reduce 2(P-1)/P of the data per rank, as in
/// R. Thakur, R. Rabenseifner, W. Gropp, Optimization of Collective Communication Operations in MPICH, 2005, are the
/// cases K = 1 and K = P.
/// Partials that do not commute (a sum of maxima) nest: the last mesh dim is reduced first.
/// Reusable; planned from facts every rank holds (redistribution_plan.h). Between two meshes the first one ever made is
/// collective over both.
class Redistribution {
 public:
  /// ValueError, on every rank alike, when the meshes hold different ranks.
  Redistribution(SpecPtr from, SpecPtr to);
  /// Collective over the mesh if anything moves, which counts as `traffic`. May return `local` itself or a view of it.
  at::Tensor apply(const at::Tensor& local, Traffic traffic = Traffic::kRedistribute) const;

  /// Does apply in two halves: rows that need not be summed travel in between.
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
  struct Part {  // of the local block, in the order of the ranks that will keep them
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
  std::shared_ptr<const IntervalMap> map_;  // null when every rank has what it needs
  std::optional<ReduceOp> fill_;            // whose neutral value stands where a rank holds no addend
  std::optional<ReduceOp> seed_;            // this rank's whole block is the neutral value of this
};

class Redistribution::Pending {
 public:
  /// Waits, and returns the block.
  at::Tensor finish();

 private:
  friend class Redistribution;
  std::shared_ptr<const IntervalMap> map_;
  std::unique_ptr<PendingGather> under_way_;
  at::Tensor block_;
  std::optional<ReduceOp> seed_;
};

/// Local block of `from` to local block of `to`. Not cached.
at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to,
                              Traffic traffic = Traffic::kRedistribute);

/// Estimated elements each rank sends, the same figure on every rank; for choosing plans. Of one mesh. Fetching what is
/// stored (Placement::stored) counts next to nothing, so that it never makes another tensor move instead.
double redistribution_cost(const ShardSpec& from, const ShardSpec& to);

}  // namespace moonhalo
