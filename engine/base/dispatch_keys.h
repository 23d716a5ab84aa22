// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace moonhalo {

/// The key below autograd on which every call with a ShardTensor arrives.
inline constexpr c10::DispatchKey kShardKey = c10::DispatchKey::CustomRNGKeyId;

/// LibTorch keeps this key free for deferred tensors (deferred/deferred.h); it stands above autograd.
inline constexpr c10::DispatchKey kDeferredKey = c10::DispatchKey::DeferredInit;
inline bool is_deferred(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kDeferredKey); }

/// Above autograd, and unused by LibTorch: included while an ElementwiseRandom lives (random/random.h). Only random
/// operators have a kernel there, all others fall through at no cost.
inline constexpr c10::DispatchKey kRandomKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// Above autograd, and unused by LibTorch: included while factories are captured (deferred/factory_capture.h), where
/// the factories have kernels; and every ShardTensor has it, so that operators with kernels for sparse tensors are met
/// there (dispatch/sparse_refusals.cpp). All others fall through.
inline constexpr c10::DispatchKey kCaptureKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
inline constexpr c10::DispatchKey kSparseCheckKey = kCaptureKey;

/// While one lives, factories make plain tensors. Next to free when nothing is captured.
class SuspendCapture {
 public:
  SuspendCapture() {
    if (c10::impl::tls_is_dispatch_key_included(kCaptureKey)) guard_.emplace(kCaptureKey);
  }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

}  // namespace moonhalo
