// SPDX-License-Identifier: Apache-2.0
// as_strided of a ShardTensor as the views that its strides describe: permute, flatten, select, slice, unfold, expand.
// These have rules on any cut, and derivatives; that of as_strided writes memory. So as_strided is intercepted above
// autograd. Other strides go on to the rule of as_strided.cpp, which refuses them.
//
//     rows in chunks of 8:   |0 .. 7|8 .. 15|16 .. 23|
//     windows of 8 every 4 rows, by strides {4, 1}:  0-7  4-11  8-15  12-19  16-23
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

/// A result dim that steps along a run of rows.
struct Stepping {
  int64_t result_dim, size, step;
};

/// A dim of the tensor, or neighbouring ones whose rows follow one another in memory, as one.
struct RowRun {
  int64_t size, stride, start;
  int64_t dims = 1;
  std::vector<Stepping> walks;  ///< the larger step first

  /// The rows from the first one that the result has to the last one.
  int64_t reach() const {
    int64_t rows = 1;
    for (const Stepping& walk : walks) rows += (walk.size - 1) * walk.step;
    return rows;
  }
  bool fits() const { return start + reach() <= size; }
};

/// The dims of more than one row as runs, outermost in memory first; nullopt if rows overlap.
std::optional<std::vector<RowRun>> runs_of(const at::Tensor& x, const std::vector<int64_t>& order, int64_t offset) {
  std::vector<RowRun> runs;
  for (const int64_t d : order) {
    if (x.stride(d) <= 0) return std::nullopt;
    if (!runs.empty() && runs.back().stride < x.size(d) * x.stride(d)) return std::nullopt;
    runs.push_back({x.size(d), x.stride(d), offset / x.stride(d)});
    if (runs.back().start >= x.size(d)) return std::nullopt;
    offset %= x.stride(d);
  }
  return offset == 0 ? std::optional(std::move(runs)) : std::nullopt;
}

/// Notes every result dim at the run whose rows it steps along; false if there is none, or there are three for one.
bool find_walks(std::vector<RowRun>& runs, at::IntArrayRef size, at::IntArrayRef stride) {
  for (int64_t r = 0; r < static_cast<int64_t>(size.size()); ++r) {
    if (size[r] <= 0 || stride[r] < 0) return false;
    if (size[r] == 1 || stride[r] == 0) continue;
    const auto run =
        std::find_if(runs.begin(), runs.end(), [&](const RowRun& one) { return stride[r] % one.stride == 0; });
    if (run == runs.end() || run->walks.size() == 2) return false;
    run->walks.push_back({r, size[r], stride[r] / run->stride});
    if (run->walks.size() == 2 && run->walks[0].step < run->walks[1].step) std::swap(run->walks[0], run->walks[1]);
  }
  return true;
}

/// Merges a run with the next outer one where its walks leave it; false if they leave the tensor.
bool merge_runs(std::vector<RowRun>& runs) {
  for (size_t i = runs.size(); i-- > 0;) {
    while (!runs[i].fits()) {
      if (i == 0 || runs[i - 1].stride != runs[i].size * runs[i].stride) return false;
      RowRun& inner = runs[i];
      RowRun& outer = runs[i - 1];
      for (Stepping& walk : outer.walks) walk.step *= inner.size;
      inner.walks.insert(inner.walks.begin(), outer.walks.begin(), outer.walks.end());
      if (inner.walks.size() > 2) return false;
      std::stable_sort(inner.walks.begin(), inner.walks.end(), [](auto& a, auto& b) { return a.step > b.step; });
      inner.start += outer.start * inner.size;
      inner.size *= outer.size;
      inner.dims += outer.dims;
      runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(--i));
    }
  }
  return true;
}

at::Tensor narrowed(const at::Tensor& x, int64_t dim, int64_t start, int64_t size, int64_t step = 1) {
  return start == 0 && size == x.size(dim) && step == 1 ? x : x.slice(dim, start, start + (size - 1) * step + 1, step);
}

/// Steps along the runs, which are the dims of `x`; then puts the dims of the result in their order.
at::Tensor walk(at::Tensor x, const std::vector<RowRun>& runs, at::IntArrayRef size) {
  std::vector<int64_t> result_dims(runs.size(), -1);  // of the dims of x
  for (auto d = static_cast<int64_t>(runs.size()) - 1; d >= 0; --d) {
    const RowRun& run = runs[d];
    if (run.walks.empty()) {
      x = x.select(d, run.start);
      result_dims.erase(result_dims.begin() + d);
      continue;
    }
    const Stepping& first = run.walks[0];
    result_dims[d] = first.result_dim;
    if (run.walks.size() == 1) {
      x = narrowed(x, d, run.start, first.size, first.step);
      continue;
    }
    const Stepping& inner = run.walks[1];
    const int64_t window = (inner.size - 1) * inner.step + 1;
    x = narrowed(x, d, run.start, run.reach()).unfold(d, window, first.step);
    x = narrowed(x, -1, 0, inner.size, inner.step);
    result_dims.push_back(inner.result_dim);
  }
  std::vector<int64_t> order(result_dims.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return result_dims[a] < result_dims[b]; });
  x = x.permute(order);
  for (int64_t r = 0; r < static_cast<int64_t>(size.size()); ++r) {
    if (std::find(result_dims.begin(), result_dims.end(), r) == result_dims.end()) x = x.unsqueeze(r);
  }
  return x.expand(size);
}

std::optional<at::Tensor> as_views(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                                   int64_t offset) {
  if (size.size() != stride.size() || self.numel() == 0 || offset < 0) return std::nullopt;
  std::vector<int64_t> order, single;
  for (int64_t d = 0; d < self.dim(); ++d) (self.size(d) == 1 ? single : order).push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return self.stride(a) > self.stride(b); });
  auto runs = runs_of(self, order, offset);
  if (!runs || !find_walks(*runs, size, stride) || !merge_runs(*runs)) return std::nullopt;
  order.insert(order.begin(), single.begin(), single.end());
  at::Tensor x = self.permute(order);
  for (size_t i = 0; i < single.size(); ++i) x = x.squeeze(0);
  int64_t d = 0;
  for (const RowRun& run : *runs) {
    if (run.dims > 1) x = x.flatten(d, d + run.dims - 1);
    ++d;
  }
  return walk(x, *runs, size);
}

template <typename Operator, bool copies>
at::Tensor as_strided_views(c10::DispatchKeySet keys, const at::Tensor& self, at::SymIntArrayRef size,
                            at::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  constexpr c10::DispatchKeySet kBelowThis(c10::DispatchKeySet::FULL_AFTER, kSparseCheckKey);
  if (is_shard_tensor(self)) {
    const int64_t from = offset ? offset->guard_int(__FILE__, __LINE__) : 0;
    const auto views = as_views(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), from);
    if (views) return copies ? views->clone(at::MemoryFormat::Contiguous) : *views;
  }
  return Operator::redispatch(keys & kBelowThis, self, size, stride, offset);
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  library.impl("as_strided", TORCH_FN((as_strided_views<at::_ops::as_strided, false>)));
  library.impl("as_strided_copy", TORCH_FN((as_strided_views<at::_ops::as_strided_copy, true>)));
}

}  // namespace
}  // namespace moonhalo
