// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/model/module_tree.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace moonhalo {

/// The patches of one call of `patch`. They stay if this object is destroyed.
class Patches {
 public:
  explicit Patches(std::vector<std::function<void()>> removers) : removers_(std::move(removers)) {}
  /// Takes the patches off, the last first. A second call does nothing. Not collective.
  void remove();

 private:
  std::vector<std::function<void()>> removers_;
};

/// Runs other functions in the place of the forward of modules that are chosen by name: exact names or patterns as in
/// plans ("blocks.*.fc2"). `make` receives the module and returns what runs in its place; the wrapper receives the
/// forward that ran before. Hooks, those of a plan too, run around it, so parallelize_module may come before or after.
/// Not collective; every rank makes the same patches. Throws ValueError for a name that matches no module, and for two
/// equally good names of one module.
using MakeWrapper = std::function<ForwardWrapper(const NamedModule& module)>;
Patches patch(const ModuleTreePtr& net, const std::map<std::string, MakeWrapper>& patches);

/// The same for torch::nn (not collective), where modules are called with `moonhalo::call`: `forward(input)` is what
/// ran before.
///
///     auto patches = mh::patch(net.ptr(), {{"blocks.*.fc2", [](torch::nn::Module& self, const auto& forward, const
///                                           at::Tensor& x) { return forward(x) * 2; }}});
using TorchPatch = std::function<at::Tensor(
    torch::nn::Module& self, const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& input)>;
Patches patch(const std::shared_ptr<torch::nn::Module>& net, const std::map<std::string, TorchPatch>& patches);

}  // namespace moonhalo
