// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <initializer_list>

namespace moonhalo {

/// The dispatch key of fake tensors (forecast/fake_tensor.h). It is below autograd and above the key of ShardTensors,
/// and LibTorch has no kernel there.
inline constexpr c10::DispatchKey kFakeKey = c10::DispatchKey::Fake;

/// True for a tensor whose values are not computed. A kernel that reads memory asks this first.
inline bool is_fake(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kFakeKey); }

/// True if one of the tensors is fake. A kernel that reads several of them asks this.
inline bool any_fake(std::initializer_list<at::Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), is_fake);
}

/// Makes a dense tensor of the CPU fake: it keeps its memory, whose values count no more. Views of it do not notice.
void forget_values(const at::Tensor& tensor);

/// True while FakeResults exists on this thread: factories make large tensors fake.
inline bool makes_fakes() { return c10::impl::tls_is_dispatch_key_included(kFakeKey); }

/// While it exists, operators of this thread compute, whatever the size of their results, unless an argument is fake.
/// For facts that the engine computes with tensors.
class ComputedValues {
  c10::impl::ExcludeDispatchKeyGuard guard_{kFakeKey};
};

}  // namespace moonhalo
