// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "engine/interval_map.h"
#include "engine/spec.h"

namespace moonhalo {

/// Takes a local block from one spec to another of the same mesh and global shape: any placement to any other, any
/// cut to any other. Partial -> Replicate is an all-reduce, Partial -> Shard a reduce-scatter; everything else one
/// interval map, so only the bytes that must move do. Replicate -> Partial keeps the value on coordinate 0.
/// Reusable; made from facts every rank holds.
class Redistribution {
 public:
  Redistribution(SpecPtr from, SpecPtr to);
  /// Collective over the mesh. May return `local` itself or a view of it.
  at::Tensor apply(const at::Tensor& local) const;
  const SpecPtr& from() const { return from_; }
  const SpecPtr& to() const { return to_; }

 private:
  struct Reduce {
    int64_t mesh_dim;
    ReduceOp op;
    int64_t scatter_dim;  // -1: all-reduce
    std::vector<int64_t> sizes;
  };
  struct Seed {  // Replicate -> Partial on a rank that must hold the neutral element
    double value;
  };
  SpecPtr from_, to_;
  std::vector<Reduce> reduces_;
  std::unique_ptr<IntervalMap> map_;  // null when no cut changes
  std::optional<Seed> seed_;
};

/// Local block of `from` to local block of `to`. Not cached.
at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to);

/// Estimated elements each rank sends, the same figure on every rank; for choosing plans.
double redistribution_cost(const ShardSpec& from, const ShardSpec& to);

}  // namespace moonhalo
