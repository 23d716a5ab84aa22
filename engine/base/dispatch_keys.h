// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace moonhalo {

/// The dispatch key of ShardTensors. It is below autograd; every call with a ShardTensor arrives here.
inline constexpr c10::DispatchKey kShardKey = c10::DispatchKey::CustomRNGKeyId;

/// The dispatch key of deferred tensors (deferred/deferred.h). LibTorch reserves it for this purpose; it is above
/// autograd.
inline constexpr c10::DispatchKey kDeferredKey = c10::DispatchKey::DeferredInit;
/// True for a tensor of any shape and dtype that has no memory yet (deferred/deferred.h). Not collective.
inline bool is_deferred(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kDeferredKey); }

/// The dispatch key that is included during the lifetime of an ElementwiseRandom (random/random.h). It is above
/// autograd, and LibTorch does not use it. Only random operators have a kernel there; all others fall through at no
/// cost.
inline constexpr c10::DispatchKey kRandomKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// A dispatch key above autograd that LibTorch does not use. It has two jobs: it is included while factories are
/// captured (deferred/factory_capture.h), and every ShardTensor has it, so that operators with kernels for sparse
/// tensors are intercepted (dispatch/sparse_refusals.cpp). All other operators fall through.
inline constexpr c10::DispatchKey kCaptureKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
inline constexpr c10::DispatchKey kSparseCheckKey = kCaptureKey;

/// Makes factories return plain tensors during its lifetime. Costs next to nothing if nothing is captured.
class SuspendCapture {
 public:
  SuspendCapture() {
    if (c10::impl::tls_is_dispatch_key_included(kCaptureKey)) guard_.emplace(kCaptureKey);
  }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

}  // namespace moonhalo
