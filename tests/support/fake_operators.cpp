// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/support/fake_device.h"
#include "tests/support/fake_memory.h"

namespace moonhalo::testing::fake {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// The tensor as kernels see it. Does not keep the memory alive: on a device that is up to the program.
at::Tensor as_kernels_see(const at::Tensor& tensor) {
  void* const at = tensor.numel() == 0 ? nullptr : kernel_view(tensor.const_data_ptr());
  at::Tensor seen = at::from_blob(at, tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
  seen._set_conj(tensor.is_conj());
  seen._set_neg(tensor.is_neg());
  return seen;
}

c10::Stream stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

void enqueue_copy(const c10::Stream& stream, at::Tensor from, at::Tensor to) {
  enqueue(stream, [from = std::move(from), to = std::move(to)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor(to).copy_(from);
  });
}

void copy_between_devices(const at::Tensor& from, const at::Tensor& to) {
  Event ready, done;
  ready.record(stream_of(to));
  ready.hold_back(stream_of(from));
  enqueue_copy(stream_of(from), as_kernels_see(from), as_kernels_see(to));
  done.record(stream_of(from));
  done.hold_back(stream_of(to));
}

// Memory of the host that is not pinned is copied at once on the way to a device, and waited for on the way back.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.numel() == 0) return to;
  if (from._is_zerotensor()) return at::Tensor(to).zero_();
  if (to.is_cpu() || from.is_cpu()) {
    count_host_copy(to.nbytes());
  } else {
    count_launch("aten::copy_");
  }
  if (to.is_cpu()) {
    enqueue_copy(stream_of(from), as_kernels_see(from), to);
    if (non_blocking && is_pinned(to.const_data_ptr())) return to;
    count_host_wait();
    finish(stream_of(from));
  } else if (from.is_cpu()) {
    const bool waits = non_blocking && is_pinned(from.const_data_ptr());
    if (!is_pinned(from.const_data_ptr())) count_pageable();
    enqueue_copy(stream_of(to), waits ? from : from.clone(), as_kernels_see(to));
  } else if (from.device() == to.device()) {
    enqueue_copy(stream_of(to), as_kernels_see(from), as_kernels_see(to));
  } else {
    copy_between_devices(from, to);
  }
  return to;
}

c10::Device placed(std::optional<at::Device> expected) {
  return expected && expected->has_index() ? *expected : device(current_device());
}

at::Tensor empty(at::IntArrayRef shape, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> where, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(placed(where));
  return at::detail::empty_generic(shape, &device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef shape, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> where, std::optional<bool>) {
  const c10::DeviceGuard guard(placed(where));
  return at::detail::empty_strided_generic(shape, strides, &device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

// Larger storage keeps what it had.
void grow(const at::Tensor& tensor, size_t bytes) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (bytes <= storage->nbytes()) return;
  const c10::DeviceGuard guard(tensor.device());
  c10::DataPtr larger = device_allocator().allocate(bytes);
  if (storage->nbytes() > 0) device_allocator().copy_data(larger.get(), storage->data(), storage->nbytes());
  storage->set_data_ptr_noswap(std::move(larger));
  storage->set_nbytes(bytes);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef shape, std::optional<at::MemoryFormat> format) {
  if (self.sizes() == shape) return self;
  at::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(shape);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  grow(self, static_cast<size_t>(self.storage_offset() + self.numel()) * self.itemsize());
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& self) {
  count_host_wait();
  count_host_copy(self.itemsize());
  finish(stream_of(self));
  return as_kernels_see(self).item();
}

// As CUDA: single numbers, and the indices of index and index_put, may be on the host.
void refuse_host_tensors(const std::string& name, const torch::jit::Stack& stack, size_t arguments) {
  const auto check = [&](const at::Tensor& tensor) {
    TORCH_CHECK(!tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0, name,
                ": Expected all tensors to be on the same device, but found one of shape ", tensor.sizes(),
                " on cpu among those of a fake device");
  };
  for (const c10::IValue& value : torch::jit::last(stack, arguments)) {
    if (value.isTensor()) check(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) check(tensor);
    }
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  refuse_host_tensors(op.operator_name().name, *stack, op.schema().arguments().size());
  count_launch(op.operator_name().name);
  const InsideDevice inside;
  at::native::cpu_fallback(op, stack);
}

at::Tensor on(const c10::Device& where, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(where) : tensor;
}

// oneDNN's kernels for AMX read memory that was never written in some convolutions of 2-byte types with a stride
// (ops/window/conv_local.cpp); a device's own do not.
at::Tensor for_convolution(const at::Tensor& tensor) {
  const at::Tensor on_host = tensor.cpu();
  return at::isReducedFloatingType(tensor.scalar_type()) ? on_host.to(at::kFloat) : on_host;
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  count_launch("aten::convolution");
  const InsideDevice inside;
  const auto added = bias && bias->defined() ? std::optional(for_convolution(*bias)) : std::nullopt;
  return at::convolution(for_convolution(x), for_convolution(weight), added, stride, padding, dilation, transposed,
                         output_padding, groups)
      .to(x.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& grad, const at::Tensor& x,
                                                                    const at::Tensor& weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    int64_t groups, std::array<bool, 3> expected) {
  count_launch("aten::convolution_backward");
  const InsideDevice inside;
  const int64_t channels = grad.size(1);
  const auto [of_x, of_weight, of_bias] = at::convolution_backward(
      for_convolution(grad), for_convolution(x), for_convolution(weight), at::IntArrayRef(channels), stride, padding,
      dilation, transposed, output_padding, groups, expected);
  const auto there = [&](const at::Tensor& made) { return made.defined() ? made.to(x.options()) : made; };
  return {there(of_x), there(of_weight), there(of_bias)};
}

// Its running statistics change, though its schema does not say so.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias,
                                                          const std::optional<at::Tensor>& running_mean,
                                                          const std::optional<at::Tensor>& running_var, bool training,
                                                          double momentum, double eps) {
  count_launch("aten::native_batch_norm");
  const InsideDevice inside;
  const auto host = [](const std::optional<at::Tensor>& t) {
    return t && t->defined() ? std::optional(t->cpu()) : std::nullopt;
  };
  const auto mean = host(running_mean), var = host(running_var);
  const auto [y, save_mean, save_invstd] =
      at::native_batch_norm(x.cpu(), host(weight), host(bias), mean, var, training, momentum, eps);
  if (training && mean) at::Tensor(*running_mean).copy_(*mean);
  if (training && var) at::Tensor(*running_var).copy_(*var);
  return {on(x.device(), y), on(x.device(), save_mean), on(x.device(), save_invstd)};
}

// As CUDA's: the buffer is empty, and the derivative makes its own.
std::tuple<at::Tensor, at::Tensor> log_sigmoid(const at::Tensor& x) {
  count_launch("aten::log_sigmoid_forward");
  const InsideDevice inside;
  return {on(x.device(), std::get<0>(at::log_sigmoid_forward(x.cpu()))), at::empty({0}, x.options())};
}

at::Tensor log_sigmoid_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor&) {
  count_launch("aten::log_sigmoid_backward");
  const InsideDevice inside;
  const at::Tensor host = x.cpu();
  return on(x.device(), at::log_sigmoid_backward(grad.cpu(), host, std::get<1>(at::log_sigmoid_forward(host))));
}

}  // namespace

void register_operators() {
  using torch::Library;
  static auto* any = new Library(Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  any->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  static auto* aten = new Library(Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten->impl("empty.memory_format", &empty);
  aten->impl("empty_strided", &empty_strided);
  aten->impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten->impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten->impl("view", TORCH_FN(at::native::view));
  aten->impl("unfold", TORCH_FN(at::native::unfold));
  aten->impl("view_as_real", TORCH_FN(at::native::view_as_real));
  aten->impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  aten->impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  aten->impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  aten->impl("resize_", &resize_);
  aten->impl("_copy_from", &copy_from);
  aten->impl("_copy_from_and_resize", &copy_from_and_resize);
  aten->impl("_local_scalar_dense", &item);
  aten->impl("convolution_overrideable", &convolution);
  aten->impl("convolution_backward_overrideable", &convolution_backward);
  aten->impl("native_batch_norm", &batch_norm);
  aten->impl("log_sigmoid_forward", &log_sigmoid);
  aten->impl("log_sigmoid_backward", &log_sigmoid_backward);
  // Where LibTorch has other formulas for devices that it does not know, with other results for empty tensors.
  for (const char* const name : {"native_layer_norm", "native_group_norm"})
    aten->impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  // Copies know of conjugated, negated and zero tensors themselves.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor}) {
    auto* marks = new Library(Library::IMPL, "aten", key, __FILE__, __LINE__);
    marks->impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
}

}  // namespace moonhalo::testing::fake
