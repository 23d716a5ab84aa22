// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/device_constant.h"

#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

#include "moonhalo/engine/base/base_context.h"

namespace moonhalo {
namespace {

constexpr size_t kMostConstants = 1024;

template <typename T>
at::Tensor constant(const at::TensorOptions& options, const std::vector<T>& values) {
  const c10::Device device = options.device();
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (!c10::impl::hasDeviceGuardImpl(device.type()) || device.is_cpu() || device.is_meta())
    return at::tensor(values, c10::CppTypeToScalarType<T>::value).to(device, dtype);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  std::string key = stream.device().str() + " " + std::to_string(stream.id()) + " " + c10::toString(dtype) + " ";
  key.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  auto& constants = base_context->device_constants;
  if (constants.size() >= kMostConstants) constants.clear();
  at::Tensor& known = constants[key];
  if (!known.defined()) {
    const c10::InferenceMode not_for_inference(false);  // others may save it for their derivatives
    known = at::tensor(values, c10::CppTypeToScalarType<T>::value).to(stream.device(), dtype);
  }
  return known;
}

}  // namespace

at::Tensor constant_on(const at::TensorOptions& options, const std::vector<int64_t>& values) {
  return constant(options, values);
}
at::Tensor constant_on(const at::TensorOptions& options, const std::vector<double>& values) {
  return constant(options, values);
}

}  // namespace moonhalo
