// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo::jit {

/// A module as it is to be written: its class in Python, tensors and children by name. A module under two names is one
/// object.
struct TracedModule {
  std::string class_name;
  std::vector<std::pair<std::string, at::Tensor>> parameters = {}, buffers = {};
  std::vector<std::pair<std::string, std::shared_ptr<const TracedModule>>> children = {};
};

/// Runs `forward` once on `inputs` and returns a TorchScript module that does the same operators on the tensors of
/// `root`. Numbers that `forward` computes itself, such as sizes, become constants. `check` are other inputs, on which
/// the result must agree with `forward`. Not collective: tensors must be plain. Throws NotImplementedError for
/// operators that Python's PyTorch does not have, and ValueError if the results on `check` differ.
torch::jit::Module trace(const TracedModule& root, const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& check,
                         const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& forward);

}  // namespace moonhalo::jit
