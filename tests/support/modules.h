// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing {

/// `module` in double precision, with initial values that do not come from LibTorch's generator, which all ranks share.
template <class Module>
Module with_values(Module module) {
  module->to(at::kDouble);
  const at::NoGradGuard no_grad;
  int64_t seed = 1;
  for (at::Tensor& parameter : module->parameters()) parameter.copy_(make_tensor(parameter.sizes(), seed++) * 0.5);
  return module;
}

}  // namespace moonhalo::testing
