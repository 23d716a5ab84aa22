// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// Dims that the argument `dim` of a reduction names (int, int? or int[]?), wrapped and sorted; all
/// dims when there is no such argument, when it is None, and when it is an empty list (unless
/// `empty_is_none`: then no dims).
std::vector<int64_t> reduced_dims(const OpCall& call, int64_t ndim, bool empty_is_none = false);

/// Spec of what reducing `dims` of `from` leaves. On mesh dims that cut one of them the result is
/// Partial(left), or Replicate without `left` (the caller reduces over the ranks itself).
/// Everything else stays as in `from`.
SpecPtr reduced_spec(const SpecPtr& from, at::IntArrayRef dims, bool keepdim, std::optional<ReduceOp> left = {});

/// Product of the global sizes of `dims`: the true count of a mean.
int64_t global_count(const ShardSpec& spec, at::IntArrayRef dims);

/// The ranks that hold the whole of `dims` together: those along the mesh dims that cut one of
/// them.
class CutGroup {
 public:
  CutGroup(const SpecPtr& spec, at::IntArrayRef dims);
  /// No mesh dim cuts these dims, so there is no rank to send to.
  bool alone() const { return mesh_dims_.empty(); }
  /// Every rank's `data` reduced into one, the same on all of them. Collective over the group; may
  /// write into `data`.
  at::Tensor all_reduce(const at::Tensor& data, ReduceOp op = ReduceOp::kSum) const;

 private:
  MeshPtr mesh_;
  std::vector<int64_t> mesh_dims_;
};

/// A block may hold no rows of `dims` although the whole tensor does. (Without any rows the
/// operator must refuse.)
bool blocks_may_be_empty(const SpecPtr& spec, at::IntArrayRef dims);

/// True if `keepdim` is set.
bool keeps_dims(const OpCall& call);

/// Runs the operator itself, or, where this rank's block has no rows to reduce (kernels refuse
/// that), gives the value that changes nothing: one result per entry of `ops`.
Run run_or_neutral(const OpCall& call, std::vector<int64_t> dims, bool keepdim, std::vector<ReduceOp> ops);

/// The dtype in which sums of `dtype` are taken before they are sent: float for half and bfloat16.
at::ScalarType wide_type(at::ScalarType dtype);

}  // namespace moonhalo
