// SPDX-License-Identifier: Apache-2.0
// Everything that arrives with a ShardTensor is intercepted here, at load. The few operators that must be met above
// autograd are in ops/linear.cpp and ops/picked_values.cpp; engine/README.md lists all of it.
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <mutex>
#include <vector>

#include "engine/dispatch.h"
#include "engine/shard_tensor.h"

namespace moonhalo {
namespace {

void fallback_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Dispatch::of_this_thread().run(op, *stack);
}

// Kernels that an operator offers to every backend (CompositeExplicitAutograd) come before a backend key's fallback,
// so those operators are claimed one by one.
bool must_be_claimed(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasSchema() && !op.hasKernelForDispatchKey(kShardKey) &&
         (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional));
}

TORCH_LIBRARY_IMPL(_, CustomRNGKeyId, library) {
  static_assert(kShardKey == c10::DispatchKey::CustomRNGKeyId, "the fallback is registered for another key");
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
}

// The tensor takes block, spec and shape of its own view. The derivative of group norm's derivative does this to a result.
at::Tensor& unsqueeze_in_place(at::Tensor& self, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  self.unsafeGetTensorImpl()->shallow_copy_from(at::unsqueeze(self, dim).getIntrusivePtr());
  return self;
}

// Before the operators are claimed below, which leaves this one out.
TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, library) { library.impl("unsqueeze_", &unsqueeze_in_place); }

[[maybe_unused]] const bool claimed_at_load = (claim_operators(), true);

}  // namespace

void claim_operators() {
  static std::mutex mutex;
  // Never destroyed: operators may run until the process ends.
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  const std::lock_guard lock(mutex);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !must_be_claimed(*op)) continue;
    handles->push_back(dispatcher.registerImpl(name, kShardKey,
                                               c10::KernelFunction::makeFromBoxedFunction<&fallback_kernel>(),
                                               std::nullopt, nullptr, "moonhalo"));
  }
}

}  // namespace moonhalo
