// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moonhalo {

/// True if a plain tensor's memory does not hold its values: LibTorch has put off a conjugation (x.conj()), a
/// negation (imag(x.conj())) or zeros (what several derivatives make). Blocks of ShardTensors and what is sent
/// never are: code that reads their memory would miss it.
inline bool is_lazy(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kLazy(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return tensor.key_set().has_any(kLazy);
}
/// The same values, held by memory: of a lazy tensor a copy, else the tensor. Not recorded by autograd.
at::Tensor materialize_lazy_bits(const at::Tensor& tensor);

/// Throws NotImplementedError, naming `operation`, for a plain tensor that has no rows to cut: sparse, or in a layout
/// of a library's own.
[[noreturn]] void refuse_layout(at::Layout layout, at::IntArrayRef shape, const char* operation);
inline void check_strided(const at::Tensor& tensor, const char* operation) {
  if (tensor.layout() != at::kStrided) [[unlikely]]
    refuse_layout(tensor.layout(), tensor.sizes(), operation);
}

}  // namespace moonhalo
