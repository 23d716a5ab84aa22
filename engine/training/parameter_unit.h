// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/tensor/kept_gather.h"
#include "moonhalo/engine/training/unit_gather.h"
#include "moonhalo/engine/training/unit_reducer.h"

namespace moonhalo {

struct FullyShardOptions {
  int64_t min_numel = 1024;  ///< tensors of fewer elements are copied: their blocks would save less than they cost
  int64_t unit_rows = 1;  ///< blocks begin at multiples of so many rows, so that what is quantised by rows stays whole
  bool level = true;      ///< rows left over go to the ranks that hold least; false: to the first ones
  bool reshard_after_forward = true;   ///< whole parameters are freed after forward and gathered again for backward
  bool reshard_after_backward = true;  ///< false: they stay until an optimizer writes them
  int64_t prefetch = 1;                ///< gathers of so many units that come next travel meanwhile
  /// Operators are given parameters cast to this type, and their blocks travel so; gradients come back in the
  /// parameters' own.
  std::optional<at::ScalarType> param_dtype = {};
  GradientSyncOptions gradients = {};
};

/// Parameters that are gathered together, as fully_shard names them: one message per pair of ranks before the forward
/// of a module and one before its backward, and those of the unit that came next in the last pass travel meanwhile.
/// Only a cache is filled (kept_gather.h): used outside of such calls, parameters are gathered by the operator that
/// needs them, and no result depends on units.
///
/// Collective over the mesh: all ranks make the same units and the same calls. Of one rank (thread).
class ParameterUnit : public std::enable_shared_from_this<ParameterUnit> {
 public:
  /// Parameters of an earlier unit stay with it. Those that are not stored, or not by one mesh dim alone, are left to
  /// their operators.
  ParameterUnit(const std::vector<at::Tensor>& parameters, const FullyShardOptions& options);

  /// Gathers what is not there. Units that are called within others know it and count on their order.
  void before_forward();
  /// Frees, if asked for, and hooks on to the results that need gradients.
  void after_forward(at::TensorList results);
  /// In the place of after_forward where a forward threw.
  void forward_failed();
  /// A forward between the two: `at::Tensor y = unit->call([&] { return block->forward(x); });`
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
  /// Frees what is gathered.
  void reshard();
  /// With param_dtype, between before_forward and after_forward: what stands for a parameter. Else, and for those that
  /// are not of this unit, the parameter.
  at::Tensor cast_of(const at::Tensor& parameter) const;

 private:
  friend struct UnitPasses;
  struct Entry {
    at::Tensor parameter;
    std::shared_ptr<KeptGather> kept = std::make_shared<KeptGather>();
    at::Tensor cast = {};                                               // until forward ends, then:
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> last = {};  // autograd keeps it for backward
    std::shared_ptr<const WriteCount> count = {};                       // of the parameter, since it was gathered
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
  void cast();
  void start();
  void finish();
  bool encloses(const ParameterUnit& other) const;

  std::vector<Entry> entries_;
  FullyShardOptions options_;
  std::shared_ptr<UnitReducer> reducer_;
  std::unique_ptr<Flight> flight_;
  std::vector<std::weak_ptr<ParameterUnit>> outer_;  // whose forward was under way at the last one of this
  std::weak_ptr<ParameterUnit> next_[2];             // forward, backward: which came after this
};
using ParameterUnitPtr = std::shared_ptr<ParameterUnit>;

}  // namespace moonhalo
