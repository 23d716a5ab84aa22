// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "moonhalo/engine/model/module_tree.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace moonhalo {

/// A torch::nn module as a ModuleTree. The module must be held by a shared pointer, as LibTorch's holders do.
///
/// LibTorch's modules have no hooks: hooks and wrappers run only where the module is called with `moonhalo::call`
/// (children of a Sequential included). LibTorch registers tensors once: the member variables of LibTorch's layers
/// (`weight`, `bias`, running statistics, projections of attention) are replaced together with the registered tensors;
/// tensors of other classes cannot be replaced, unless the class was declared with `declare_members`. Not collective.
ModuleTreePtr module_tree(torch::nn::Module& module);

namespace detail {
using Members = std::function<std::vector<at::Tensor*>(torch::nn::Module&)>;
void declare_members(Members members);
/// Runs the hooks and wrappers of a module around its forward. A Sequential is called child by child, any other module
/// by `forward`.
at::Tensor call_module(torch::nn::Module& module, const at::Tensor& input,
                       const std::function<at::Tensor(const at::Tensor&)>& forward);
}  // namespace detail

/// Declares the tensor members of a module class (not collective). Call it once per program, before parallelize_module:
///     declare_members<MyLayerImpl>([](MyLayerImpl& layer) { return std::vector<at::Tensor*>{&layer.scale}; });
template <class Module, class Function>
void declare_members(Function members) {
  detail::declare_members([members](torch::nn::Module& module) -> std::vector<at::Tensor*> {
    auto* typed = dynamic_cast<Module*>(&module);
    if (typed == nullptr) return {};
    return members(*typed);
  });
}

/// Calls `module->forward(input)` with the hooks around it: a plan redistributes the first argument and the first
/// result, patches run in the place of forward. `module` is a holder (torch::nn::Linear) or a shared pointer. Without
/// hooks, calls forward only. Tensors have the shapes and dtypes that the module takes. Collective if the plan moves
/// data.
template <class Module>
at::Tensor call(Module& module, const at::Tensor& input) {
  return detail::call_module(*module, input, [&](const at::Tensor& inside) { return module->forward(inside); });
}

}  // namespace moonhalo
