// SPDX-License-Identifier: Apache-2.0
// Everything that arrives with a ShardTensor is intercepted here, at load. ops/support/interceptions.cpp lists this and
// all else that is intercepted.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/dispatch/kept_error.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

void fallback_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) try {
  Dispatch::of_this_thread().run(op, *stack);
} catch (...) {
  KeptError::keep();
  throw;
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

// In-place changes of dims: the tensor takes block, spec and shape of its own view. (The derivative of group norm's
// derivative does this to a result.)
at::Tensor& become(at::Tensor& self, const at::Tensor& view) {
  self.unsafeGetTensorImpl()->shallow_copy_from(view.getIntrusivePtr());
  return self;
}

template <auto view, typename... Arguments>
at::Tensor& in_place(at::Tensor& self, Arguments... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return become(self, view(self, arguments...));
}

at::Tensor squeeze_all(const at::Tensor& self) { return at::squeeze(self); }
at::Tensor squeeze_one(const at::Tensor& self, int64_t dim) { return at::squeeze(self, dim); }
at::Tensor squeeze_some(const at::Tensor& self, at::IntArrayRef dims) { return at::squeeze(self, dims); }
at::Tensor transpose_two(const at::Tensor& self, int64_t dim0, int64_t dim1) { return at::transpose(self, dim0, dim1); }

bool keeps_places(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  if (self.sizes() != size || stride.size() != size.size() || offset != 0) return false;
  for (size_t d = 0; d < size.size(); ++d) {
    if (size[d] > 1 && stride[d] != self.stride(static_cast<int64_t>(d)) && self.numel() > 0) return false;
  }
  return true;
}

// LibTorch does this to the result of a pooling to one element, so that it is channels last as its input is: every
// element stays in its place. Intercepted above autograd, which does not need it; its formula would read memory.
const at::Tensor& as_strided_in_place(c10::DispatchKeySet keys, const at::Tensor& self, at::SymIntArrayRef size,
                                      at::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  if (!is_shard_tensor(self))
    return at::_ops::as_strided_::redispatch(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kSparseCheckKey), self, size, stride, offset);
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  const int64_t from = offset ? offset->guard_int(__FILE__, __LINE__) : 0;
  TORCH_CHECK_NOT_IMPLEMENTED(keeps_places(self, sizes, strides, from),
                              "as_strided_: the elements of a ShardTensor cannot change their places\n  have  ",
                              spec(self)->to_string(), ", strides ", self.strides(), ", to become size ", sizes,
                              ", stride ", strides, ", offset ", from,
                              "\n  fix   use view, slice, select, transpose or expand, which make a new tensor");
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return self;
}

// Before the operators are claimed below, which leaves these out.
TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, library) {
  library.impl("unsqueeze_", &in_place<&at::unsqueeze, int64_t>);
  library.impl("squeeze_", &in_place<&squeeze_all>);
  library.impl("squeeze_.dim", &in_place<&squeeze_one, int64_t>);
  library.impl("squeeze_.dims", &in_place<&squeeze_some, at::IntArrayRef>);
  library.impl("t_", &in_place<&at::t>);
  library.impl("transpose_", &in_place<&transpose_two, int64_t, int64_t>);
  library.impl("as_strided_", TORCH_FN(as_strided_in_place));
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  static_assert(kSparseCheckKey == c10::DispatchKey::TESTING_ONLY_GenericWrapper, "registered for another key");
  library.impl("as_strided_", TORCH_FN(as_strided_in_place));
}

// The operators to look at: those that were registered since the last look, and those that it was the first to see, as
// kernels may be registered after their operator.
class NewOperators final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    const std::lock_guard lock(mutex_);
    fresh_.push_back(op.operator_name());
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
  std::vector<c10::OperatorName> take() {
    const std::lock_guard lock(mutex_);
    std::vector<c10::OperatorName> taken = std::exchange(seen_once_, std::exchange(fresh_, {}));
    taken.insert(taken.end(), seen_once_.begin(), seen_once_.end());
    return taken;
  }

 private:
  std::mutex mutex_;  // taken under the dispatcher's own
  std::vector<c10::OperatorName> fresh_, seen_once_;
};

// The dispatcher keeps it as long as it is there itself.
NewOperators& listen_for_operators() {
  auto listener = std::make_unique<NewOperators>();
  NewOperators& operators = *listener;
  static auto* listening =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::move(listener)));
  (void)listening;
  return operators;
}

// Routes the operators that have a kernel for every backend to the fallback.
void claim_operators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  // Never destroyed: operators may run until the process ends.
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  static NewOperators& operators = listen_for_operators();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const c10::OperatorName& name : operators.take()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !must_be_claimed(*op)) continue;
    handles->push_back(dispatcher.registerImpl(name, kShardKey,
                                               c10::KernelFunction::makeFromBoxedFunction<&fallback_kernel>(),
                                               std::nullopt, nullptr, "moonhalo"));
  }
}

// Again with every mesh, for operators of libraries loaded since.
[[maybe_unused]] const bool claimed_at_load = (set_mesh_hook(&claim_operators), claim_operators(), true);

}  // namespace

}  // namespace moonhalo
