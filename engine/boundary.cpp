// SPDX-License-Identifier: Apache-2.0
#include "engine/boundary.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <type_traits>

#include "engine/shard_tensor.h"

namespace moonhalo {
namespace {

using torch::autograd::variable_list;

// The leaf's cut; where it is replicated, a Partial gradient may stay a sum to be reduced later.
SpecPtr gradient_spec(const SpecPtr& leaf, const SpecPtr& grad) {
  Layout layout = without_partial(leaf)->layout();
  for (int64_t m = 0; m < layout.mesh->ndim(); ++m) {
    if (!layout.uses(m) && grad->partial(m) == ReduceOp::kSum) layout.partials[m] = ReduceOp::kSum;
  }
  return intern(std::move(layout));
}

struct BoundaryHook final : torch::autograd::FunctionPreHook {
  BoundaryHook(size_t index, SpecPtr spec) : index(index), spec(std::move(spec)) {}
  variable_list operator()(const variable_list& grads) override {
    variable_list result = grads;
    at::Tensor& grad = result[index];
    if (!grad.defined()) return result;
    if (!spec) {
      if (is_shard_tensor(grad)) grad = full_tensor(grad);
      return result;
    }
    // Formulas that allocate make plain tensors, the same on every rank.
    if (!is_shard_tensor(grad)) grad = from_local(grad, replicated(spec->mesh(), grad.sizes()));
    grad = redistribute(grad, gradient_spec(spec, moonhalo::spec(grad)));
    return result;
  }
  size_t index;
  SpecPtr spec;  // null for a plain tensor
};

bool has_boundary_hook(const std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& hooks, size_t index) {
  for (const auto& hook : hooks) {
    const auto* boundary = dynamic_cast<const BoundaryHook*>(hook.get());
    if (boundary != nullptr && boundary->index == index) return true;
  }
  return false;
}

struct LambdaNode final : torch::autograd::Node {
  explicit LambdaNode(std::function<at::Tensor(const at::Tensor&)> backward) : backward(std::move(backward)) {}
  variable_list apply(variable_list&& grads) override {
    at::Tensor result = grads[0].defined() ? backward(grads[0]) : at::Tensor();
    return num_outputs() > 0 ? variable_list{std::move(result)} : variable_list{};
  }
  std::string name() const override { return "MoonhaloBackward"; }
  std::function<at::Tensor(const at::Tensor&)> backward;
};

// How the graph holds its nodes: shared_ptr up to LibTorch 2.11, intrusive_ptr in 2.15.
using NodePointer = decltype(torch::autograd::Edge::function);

template <typename Pointer>
Pointer owned(LambdaNode* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(node, [](auto* released) { deleteNode(released); });
  } else {
    return Pointer::unsafe_steal_from_new(node);
  }
}

NodePointer make_node(std::function<at::Tensor(const at::Tensor&)> backward) {
  return owned<NodePointer>(new LambdaNode(std::move(backward)));
}

}  // namespace

void guard_gradient(const at::Tensor& tensor) {
  ShardTensorImpl* impl = shard_impl(tensor);
  if (impl != nullptr && impl->guarded) return;
  const auto& node = tensor.grad_fn();
  if (impl != nullptr) {
    impl->guarded = true;
    if (node) return;
    torch::autograd::impl::add_hook(tensor, std::make_unique<BoundaryHook>(0, impl->spec()));
  } else if (node) {
    const size_t index = tensor.output_nr();
    if (!has_boundary_hook(node->tensor_pre_hooks(), index)) {
      node->add_tensor_pre_hook(std::make_unique<BoundaryHook>(index, nullptr));
    }
  } else if (!has_boundary_hook(torch::autograd::impl::hooks(tensor), 0)) {
    torch::autograd::impl::add_hook(tensor, std::make_unique<BoundaryHook>(0, nullptr));
  }
}

void connect(const at::Tensor& input, const at::Tensor& output, std::function<at::Tensor(const at::Tensor&)> backward) {
  if (!c10::GradMode::is_enabled() || !input.requires_grad()) return;
  auto node = make_node(std::move(backward));
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(output, node);
}

void connect_without_input(const at::Tensor& output, std::function<void(const at::Tensor&)> backward) {
  if (!c10::GradMode::is_enabled()) return;
  torch::autograd::set_history(output, make_node([backward = std::move(backward)](const at::Tensor& grad) {
                                 backward(grad);
                                 return at::Tensor();
                               }));
}

}  // namespace moonhalo
