// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/tensor/unsharded_cache.h"
#include "moonhalo/engine/training/unit_gather.h"
#include "moonhalo/engine/training/unit_reducer.h"

namespace moonhalo {

/// Settings of fully_shard.
struct FullyShardOptions {
  int64_t min_numel = 1024;  ///< tensors of fewer elements are replicated: sharding would not pay
  int64_t unit_rows = 1;     ///< blocks begin at multiples of this many rows, as row-wise quantisation needs
  bool level = true;         ///< remaining rows go to the ranks that hold the fewest bytes; false: to the first
  bool reshard_after_forward = true;   ///< free gathered parameters after forward and gather again for backward
  bool reshard_after_backward = true;  ///< false: keep them until an optimizer writes them
  int64_t prefetch = 1;                ///< number of next units whose gathers are in flight meanwhile
  /// Operators receive parameters cast to this dtype, and blocks are sent in it. Gradients have the parameters' dtype.
  std::optional<at::ScalarType> param_dtype = {};
  GradientSyncOptions gradients = {};
};

/// The parameters that fully_shard gathers together: one message per pair of ranks before a module's forward and one
/// before its backward. Gathers of the units that came next in the last pass are in flight meanwhile. A unit only fills
/// a cache (unsharded_cache.h). Outside of its calls, operators gather the parameters that they need. So no result
/// depends on units.
///
/// Collective over the mesh: all ranks make the same units and the same calls. A unit belongs to one rank thread.
class ParameterUnit : public std::enable_shared_from_this<ParameterUnit> {
 public:
  /// Takes those `parameters` that belong to no earlier unit and are stored by exactly one mesh dim. Operators gather
  /// the others themselves.
  ParameterUnit(const std::vector<at::Tensor>& parameters, const FullyShardOptions& options);

  /// Gathers the parameters that are not cached. Nested units rely on the order of these calls.
  void before_forward();
  /// Frees gathered parameters if the options say so, and registers backward hooks on results that need gradients.
  void after_forward(at::TensorList results);
  /// Call it instead of after_forward if the forward threw.
  void forward_failed();
  /// Runs a forward between before_forward and after_forward: `at::Tensor y = unit->call([&] { return
  /// block->forward(x); });`
  template <typename Forward>
  auto call(const Forward& forward) {
    before_forward();
    try {
      auto result = forward();
      after_forward({result});
      return result;
    } catch (...) {
      forward_failed();
      throw;
    }
  }
  /// Frees the gathered parameters.
  void reshard();
  /// With param_dtype, between before_forward and after_forward: returns the cast of a parameter of this unit.
  /// Otherwise returns the parameter. A segment (recompute.h) within the forward must capture casts: it runs again
  /// outside of it.
  at::Tensor cast_of(const at::Tensor& parameter) const;

 private:
  friend struct UnitPasses;
  struct Entry {
    at::Tensor parameter;
    std::shared_ptr<UnshardedCache> kept = std::make_shared<UnshardedCache>();
    at::Tensor cast = {};                                               // until forward ends; afterwards:
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> last = {};  // autograd keeps it for backward
    std::shared_ptr<const WriteCount> count = {};                       // of the parameter, since the gather
    uint64_t writes = 0;

    at::Tensor source(bool casts) const;
    void drop();
  };
  struct Flight {
    UnitGather gather;
    std::vector<Entry*> entries;
    std::vector<SpecPtr> specs;
    uint64_t values;
  };
  void reach();
  void cast(bool again);
  void start();
  void finish();
  bool encloses(const ParameterUnit& other) const;

  std::vector<Entry> entries_;
  FullyShardOptions options_;
  std::shared_ptr<UnitReducer> reducer_;
  std::unique_ptr<Flight> flight_;
  std::vector<std::weak_ptr<ParameterUnit>> outer_;  // units whose forward was running during this unit's last forward
  std::weak_ptr<ParameterUnit> next_[2];             // forward, backward: the unit that ran after this one
};
/// True if this rank has gathered parameters of a unit. Not collective.
bool gathers_parameters();

/// Shares a unit.
using ParameterUnitPtr = std::shared_ptr<ParameterUnit>;

}  // namespace moonhalo
