// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "moonhalo/engine/base/fake_key.h"

namespace moonhalo {

/// Fake tensors of at most this many bytes have memory of their own, which is 1 everywhere.
inline constexpr int64_t kSmallFakeBytes = 16384;

/// A tensor with device, dtype, sizes, strides and an address, whose values are not computed. Larger ones have no
/// memory of their own (window_memory.h). Operators with a fake tensor among their arguments give fake tensors of the
/// sizes, strides and dtype that they would give, and compute nothing; `item()` gives 1. Only for the CPU. The sizes
/// and strides must not be negative.
at::Tensor make_fake(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);
/// The same with row-major strides.
at::Tensor make_fake(at::IntArrayRef sizes, at::ScalarType dtype);
/// A tensor whose storage takes `storage_bytes`, if that is more than it needs: of a kernel that has shrunk its result.
at::Tensor make_fake_in(int64_t storage_bytes, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);
/// A fake tensor with the sizes, strides and dtype of `tensor`, which must be on the CPU and dense. It requires a
/// gradient if `tensor` does.
at::Tensor fake_like(const at::Tensor& tensor);

/// Throws if the values of `tensor` are not computed. Everything that writes values to a file or to a user asks it.
/// `what` names the tensor in the error: "checkpoint.save: the tensor 'weight'".
void check_computed(const at::Tensor& tensor, const std::string& what);

/// From here on operators of this rank throw ValueError for fake tensors, but for those while FakeResults exists. For
/// runs that compute, behind dry runs of their modules, which may have kept such tensors.
void refuse_fakes();

/// While it exists, operators of this thread that make a tensor of more than kSmallFakeBytes make a fake one, whatever
/// their arguments are. Smaller results of arguments that are not fake are computed. Meta tensors and those of devices
/// stay what they are.
class FakeResults {
 public:
  FakeResults();
  ~FakeResults();
  FakeResults(const FakeResults&) = delete;
  FakeResults& operator=(const FakeResults&) = delete;

 private:
  bool before_;
};

/// While it exists, operators of this thread whose results' shapes depend on values that are not computed (`nonzero`,
/// `masked_select`, `unique`) give `count` elements. Without it they throw.
class AssumedCount {
 public:
  explicit AssumedCount(int64_t count);
  ~AssumedCount();
  AssumedCount(const AssumedCount&) = delete;
  AssumedCount& operator=(const AssumedCount&) = delete;

  static std::optional<int64_t> current();

 private:
  std::optional<int64_t> outer_;
};

}  // namespace moonhalo
