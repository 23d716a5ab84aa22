// SPDX-License-Identifier: Apache-2.0
// ElementwiseRandom (random.h): random operators on plain tensors, carried out as those of a mesh of one rank.
#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/sharding_context.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

const MeshPtr& mesh_of_one(c10::Device device) {
  MeshPtr& mesh = sharding_context->meshes_of_one[device.str()];
  if (!mesh) {
    CommunicatorPtr alone = make_self_communicator();
    if (!device.is_cpu()) alone = make_device_communicator(std::move(alone), device);
    mesh = std::make_shared<DeviceMesh>(std::move(alone), c10::DeviceTypeName(device.type(), /*lower_case=*/true),
                                        std::vector<int64_t>{1}, std::vector<std::string>{"self"});
  }
  return mesh;
}

bool is_plain(const at::Tensor& tensor) {
  return !is_deferred(tensor) && !is_shard_tensor(tensor) && tensor.layout() == at::kStrided &&
         (tensor.is_cpu() || at::isAccelerator(tensor.device().type())) && !tensor.is_quantized();
}

// The ShardTensor whose block is `tensor` itself, below autograd.
at::Tensor wrapped(const at::Tensor& tensor) {
  return wrap(tensor, replicated(mesh_of_one(tensor.device()), tensor.sizes()));
}

void carry_out(const c10::OperatorHandle& op, Stack& stack, size_t base) {
  const auto& arguments = op.schema().arguments();
  const bool records = c10::GradMode::is_enabled();
  at::Tensor in_place;
  bool differentiable = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!stack[base + i].isTensor() || !stack[base + i].toTensor().defined()) continue;
    const auto* alias = arguments[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    differentiable |= records && stack[base + i].toTensor().requires_grad();
    if (written && !op.schema().returns().empty() && op.schema().returns()[0].alias_info() != nullptr)
      in_place = stack[base + i].toTensor();
    if (written && !stack[base + i].toTensor().is_inference())
      stack[base + i].toTensor().unsafeGetTensorImpl()->bump_version();
  }
  // copy_ tells autograd of the write: the old value gets no gradient.
  const at::Tensor target = in_place.defined() && differentiable ? in_place : at::Tensor();
  if (target.defined()) stack[base] = at::empty_like(target);
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = stack[base + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor tensor = value.toTensor();
    value = differentiable && tensor.requires_grad()
                ? from_local(tensor, replicated(mesh_of_one(tensor.device()), tensor.sizes()))
                : wrapped(tensor);
  }
  op.callBoxed(stack);
  for (size_t r = base; r < stack.size(); ++r) {
    if (!stack[r].isTensor() || !is_shard_tensor(stack[r].toTensor())) continue;
    const at::Tensor result = stack[r].toTensor();
    stack[r] = result.requires_grad() ? to_local(result) : shard_impl(result)->local();
  }
  if (in_place.defined()) {
    if (target.defined()) at::Tensor(target).copy_(stack[base].toTensor());
    stack[base] = in_place;
  }
}

void random_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t base = stack->size() - op.schema().arguments().size();
  for (size_t i = base; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    if (value.isTensor() && value.toTensor().defined() && !is_plain(value.toTensor())) {
      op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRandomKey), stack);
      return;
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKeySet({kRandomKey, kDeferredKey}));
  carry_out(op, *stack, base);
}

// Its old value matters, to the result and to its gradient: the derivative keeps a copy of it.
at::Tensor& rrelu_in_place(at::Tensor& self, at::Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
                           bool training, std::optional<at::Generator> generator) {
  return self.copy_(at::rrelu_with_noise(self.clone(), noise, lower, upper, training, generator));
}

// A permutation does not work by elements; it is drawn from this rank's generator instead of the process's.
at::Tensor& permuted(int64_t n, std::optional<at::Generator> generator, at::Tensor& out) {
  const c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKeySet({kRandomKey}));
  if (!generator || !generator->defined()) generator = default_generator();
  if (out.is_cpu() || !generator->device().is_cpu()) return at::randperm_out(out, n, generator);
  return out.resize_({n}).copy_(at::randperm(n, generator, at::kLong));
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

// These draw numbers themselves; the factories (rand, randn, randint, normal) and most kinds of dropout call these.
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, library) {
  for (const char* name : {"uniform_",
                           "normal_",
                           "log_normal_",
                           "exponential_",
                           "cauchy_",
                           "geometric_",
                           "random_",
                           "random_.from",
                           "random_.to",
                           "bernoulli_.float",
                           "bernoulli_.Tensor",
                           "bernoulli",
                           "bernoulli.p",
                           "native_dropout",
                           "rrelu_with_noise",
                           "normal.Tensor_float",
                           "normal.float_Tensor",
                           "normal.Tensor_Tensor",
                           "poisson",
                           "_standard_gamma",
                           "binomial",
                           "_sample_dirichlet",
                           "multinomial"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&random_kernel>());
  }
  library.impl("rrelu_with_noise_", &rrelu_in_place);
  library.impl("randperm.generator_out", &permuted);
}

}  // namespace

ElementwiseRandom::ElementwiseRandom() : before_(c10::impl::tls_is_dispatch_key_included(kRandomKey)) {
  c10::impl::tls_set_dispatch_key_included(kRandomKey, true);
}
ElementwiseRandom::~ElementwiseRandom() { c10::impl::tls_set_dispatch_key_included(kRandomKey, before_); }

}  // namespace moonhalo
