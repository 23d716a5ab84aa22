// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/reductions.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/comm/reduction_kernels.h"

namespace moonhalo {

std::vector<int64_t> reduced_dims(const OpCall& call, int64_t ndim, bool empty_is_none) {
  std::vector<int64_t> dims(ndim);
  std::iota(dims.begin(), dims.end(), 0);
  if (!call.has("dim") || !call.given("dim")) return dims;
  const c10::IValue& value = call.value("dim");
  std::vector<int64_t> named = value.isInt() ? std::vector<int64_t>{value.toInt()} : call.integers("dim");
  if (named.empty() && !empty_is_none) return dims;
  for (int64_t& d : named) d = at::maybe_wrap_dim(d, ndim);
  if (ndim == 0) return {};
  std::sort(named.begin(), named.end());
  return named;
}

SpecPtr reduced_spec(const SpecPtr& from, at::IntArrayRef dims, bool keepdim, std::optional<ReduceOp> left) {
  Layout layout;
  layout.mesh = from->mesh();
  layout.partials = from->layout().partials;
  for (int64_t d = 0; d < from->ndim(); ++d) {
    const bool gone = std::find(dims.begin(), dims.end(), d) != dims.end();
    if (gone) {
      for (const int64_t m : from->cut(d).mesh_dims) layout.partials[m] = left;
    }
    if (gone && !keepdim) continue;
    layout.global_shape.push_back(gone ? 1 : from->global_shape()[d]);
    layout.cuts.push_back(gone ? Cut{} : from->cut(d));
  }
  return intern(std::move(layout));
}

int64_t global_count(const ShardSpec& spec, at::IntArrayRef dims) {
  int64_t count = 1;
  for (const int64_t d : dims) count *= spec.global_shape()[d];
  return count;
}

CutGroup::CutGroup(const SpecPtr& spec, at::IntArrayRef dims) : mesh_(spec->mesh()) {
  for (const int64_t d : dims) {
    for (const int64_t m : spec->cut(d).mesh_dims) {
      if (mesh_->size(m) > 1) mesh_dims_.push_back(m);
    }
  }
  std::sort(mesh_dims_.begin(), mesh_dims_.end());
}

bool blocks_may_be_empty(const SpecPtr& spec, at::IntArrayRef dims) {
  return !CutGroup(spec, dims).alone() && global_count(*spec, dims) > 0;
}

at::Tensor CutGroup::all_reduce(const at::Tensor& data, ReduceOp op) const {
  if (alone()) return data;
  at::Tensor result = data.contiguous();
  int64_t ranks = 1;
  for (const int64_t m : mesh_dims_) ranks *= mesh_->size(m);
  if (ranks == mesh_->size()) {
    mesh_->group().all_reduce(result, op);
  } else {
    for (const int64_t m : mesh_dims_) mesh_->group(m).all_reduce(result, op);
  }
  return result;
}

at::ScalarType wide_type(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

bool keeps_dims(const OpCall& call) { return call.has("keepdim") && call.flag("keepdim"); }

Run run_or_neutral(const OpCall& call, std::vector<int64_t> dims, bool keepdim, std::vector<ReduceOp> ops) {
  return [dims = std::move(dims), keepdim, ops = std::move(ops), at_self = call.arg("self")](LocalCall& call) {
    const at::Tensor x = call.tensor(at_self);
    if (std::none_of(dims.begin(), dims.end(), [&](int64_t d) { return x.size(d) == 0; })) {
      return call.run();
    }
    const at::Tensor shape_of = at::any(x, dims, keepdim);
    call.give();
    for (const ReduceOp o : ops) {
      const at::ScalarType dtype = at::toRealValueType(x.scalar_type());
      call.add(at::full(shape_of.sizes(), neutral_value(o, dtype), x.options().dtype(dtype)));
    }
  };
}

}  // namespace moonhalo
