// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace moonhalo::detail {

/// A base of module classes that keep no tensor outside of LibTorch's registries, so that it is enough to replace it
/// there.
class HasRegisteredTensorsAlone {
 public:
  virtual ~HasRegisteredTensorsAlone() = default;
};

/// The registry's own entry of a parameter or buffer of this module alone, which the caller may replace. LibTorch
/// offers no way to do so.
at::Tensor& registered_tensor(torch::nn::Module& module, const std::string& name, bool is_parameter);

}  // namespace moonhalo::detail
