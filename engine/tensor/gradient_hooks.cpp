// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/gradient_hooks.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/autograd_compat.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/tensor/engine_leaf_hook.h"
#include "moonhalo/engine/tensor/front_parameters.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

using torch::autograd::variable_list;

// The leaf's cut; where it is replicated, a Partial gradient may stay a sum to be reduced later. `keep_sums`: also
// where the leaf is stored.
SpecPtr gradient_spec(const SpecPtr& leaf, const SpecPtr& grad, bool keep_sums) {
  Layout layout = without_partial(leaf)->layout();
  for (int64_t m = 0; m < layout.mesh->ndim(); ++m) {
    if (grad->partial(m) != ReduceOp::kSum) continue;
    for (Cut& cut : layout.cuts) {
      if (keep_sums && (layout.stored >> m & 1) != 0 && cut.mesh_dims == std::vector<int64_t>{m}) cut = {};
    }
    if (!layout.uses(m)) layout.partials[m] = ReduceOp::kSum;
  }
  return intern(std::move(layout));
}

// The block of `grad` is the whole gradient, and only the lists of autograd's engine and of the hook hold it. Then it
// need not be copied, and the leaf may keep it.
bool is_ours_alone(const at::Tensor& grad) {
  ShardTensorImpl& impl = *shard_impl(grad);
  return impl.spec()->mesh()->size() == 1 && !grad.requires_grad() && grad.use_count() == 2 &&
         impl.get_backend_meta() == nullptr && !impl.shares_block() && impl.local().use_count() == 1 &&
         impl.local().storage().use_count() == 1 && impl.local().is_contiguous();
}

// Changes a gradient on its way into a leaf, or into a plain tensor that entered an operator with ShardTensors.
struct BoundaryHook final : torch::autograd::FunctionPreHook {
  using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl>;
  explicit BoundaryHook(size_t index) : index(index) {}
  BoundaryHook(size_t index, const at::Tensor& leaf, SpecPtr required)
      : index(index), leaf(leaf.getIntrusivePtr()), required(std::move(required)) {}

  variable_list operator()(const variable_list& grads) override {
    variable_list result = grads;
    at::Tensor& grad = result[index];
    if (!grad.defined()) return result;
    const TrafficScope moving(Traffic::kGradients);
    if (!leaf) {
      if (is_shard_tensor(grad)) grad = is_ours_alone(grad) ? shard_impl(grad)->local() : full_tensor(grad);
      return result;
    }
    const auto impl = leaf->lock();
    if (!impl) return result;
    // set_data may have given the leaf another cut since.
    const SpecPtr& own = static_cast<const ShardTensorImpl*>(impl.get())->spec();
    // Formulas that allocate make plain tensors, the same on every rank.
    if (!is_shard_tensor(grad)) grad = from_local(grad, replicated(own->mesh(), grad.sizes()));
    const bool asked = required && required->global_shape() == own->global_shape();
    grad = redistribute(grad, asked ? required : gradient_spec_of(own, moonhalo::spec(grad)));
    return result;
  }

  // A program repeats itself.
  const SpecPtr& gradient_spec_of(const SpecPtr& own, const SpecPtr& grad) {
    if (own != last_own || grad != last_grad) {
      last = gradient_spec(own, grad, keeps_sums);
      last_own = own;
      last_grad = grad;
    }
    return last;
  }

  size_t index;
  std::optional<WeakImpl> leaf;  // a ShardTensor; none: a plain tensor
  SpecPtr required;              // null: the leaf's own cut
  bool keeps_sums = false;
  SpecPtr last_own, last_grad, last;
};

using Hooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;

const BoundaryHook* boundary_hook(const Hooks& hooks, size_t index) {
  for (const auto& hook : hooks) {
    const auto* boundary = dynamic_cast<const BoundaryHook*>(hook.get());
    if (boundary != nullptr && boundary->index == index) return boundary;
  }
  return nullptr;
}

// Hooks of the user's stand in between: they see what the leaf will get, and what they return is brought into that
// form.
void add_around(const at::Tensor& leaf, const BoundaryHook& made) {
  torch::autograd::AutogradMeta& meta = *torch::autograd::impl::materialize_autograd_meta(leaf);
  Hooks users = std::move(meta.hooks_);
  meta.hooks_.clear();
  std::erase_if(users, [](const auto& hook) { return dynamic_cast<const BoundaryHook*>(hook.get()) != nullptr; });
  // The hook that calls those of C++ must exist, or the first of them to come would throw away all others, Python's
  // too. It holds their list; where only the tensor and this function do, Python has thrown it away.
  if (const auto list = meta.cpp_hooks_list_; list == nullptr || list.use_count() == 2) {
    torch::autograd::impl::create_cpp_hook(leaf);
    if (list != nullptr) *meta.cpp_hooks_list_ = std::move(*list);
    users.push_back(std::move(meta.hooks_.front()));
    meta.hooks_.clear();
  }
  meta.hooks_.push_back(std::make_unique<BoundaryHook>(made));
  std::move(users.begin(), users.end(), std::back_inserter(meta.hooks_));
  meta.hooks_.push_back(std::make_unique<BoundaryHook>(made));
}

// The gradient of this result of `node` is to be plain before hooks of the user's see it, and after them.
void add_around(torch::autograd::Node& node, size_t index) {
  Hooks& hooks = node.tensor_pre_hooks();
  const bool others = !hooks.empty();
  hooks.insert(hooks.begin(), std::make_unique<BoundaryHook>(index));
  if (others) hooks.push_back(std::make_unique<BoundaryHook>(index));
}

// The memory of this view was written since its node was made, so `grad_fn` makes another one.
bool needs_new_node(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  return view != nullptr && view->has_bw_view() &&
         (view->grad_fn_ || view->get_backward_view().base_.requires_grad()) &&
         tensor._version() != view->get_attr_version();
}

// Then `grad_fn` cannot make nodes. An operator that records has made those of its arguments before.
bool is_below_autograd() { return c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset); }

struct LambdaNode final : torch::autograd::Node {
  explicit LambdaNode(std::function<at::Tensor(const at::Tensor&)> backward) : backward(std::move(backward)) {}
  variable_list apply(variable_list&& grads) override {
    at::Tensor result = grads[0].defined() ? backward(grads[0]) : at::Tensor();
    return num_outputs() > 0 ? variable_list{std::move(result)} : variable_list{};
  }
  std::string name() const override { return "MoonhaloBackward"; }
  std::function<at::Tensor(const at::Tensor&)> backward;
  bool leaves_shard_tensor = false;  // the input is one, the output is plain
};

}  // namespace

bool gives_no_gradient(const at::Tensor& tensor) {
  using torch::autograd::CreationMeta;
  return needs_new_node(tensor) &&
         torch::autograd::impl::get_view_autograd_meta(tensor)->get_creation_meta() != CreationMeta::DEFAULT;
}

void install_gradient_hook(const at::Tensor& tensor) {
  ShardTensorImpl* impl = shard_impl(tensor);
  if (impl != nullptr && impl->guarded) return;
  if (gives_no_gradient(tensor) || (is_below_autograd() && needs_new_node(tensor))) return;
  const auto& node = tensor.grad_fn();
  if (impl != nullptr) {
    impl->guarded = true;
    if (node) return;
    add_around(tensor, BoundaryHook(0, tensor, SpecPtr()));
  } else if (node) {
    const size_t index = tensor.output_nr();
    if (boundary_hook(node->tensor_pre_hooks(), index) == nullptr) {
      check_not_in_front(tensor);
      add_around(*node, index);
    }
  } else if (!has_gradient_hook(tensor)) {
    check_not_in_front(tensor);  // it may stand for a tensor with a graph
    add_around(tensor, BoundaryHook(0));
  }
}

bool has_gradient_hook(const at::Tensor& leaf) {
  return torch::autograd::impl::get_autograd_meta(leaf) != nullptr &&
         boundary_hook(torch::autograd::impl::hooks(leaf), 0) != nullptr;
}

void replace_hooks(const at::Tensor& leaf, c10::function_ref<void()> replace) {
  std::optional<BoundaryHook> kept;
  if (has_gradient_hook(leaf)) kept = *boundary_hook(torch::autograd::impl::hooks(leaf), 0);
  replace();
  if (kept) add_around(leaf, *kept);
}

std::unique_ptr<torch::autograd::PostAccumulateGradHook>& accumulated_hook(const at::Tensor& leaf) {
  auto& hook = torch::autograd::impl::materialize_autograd_meta(leaf)->post_acc_grad_hooks_;
  auto* const engines = dynamic_cast<EngineLeafHook*>(hook.get());
  return engines != nullptr ? engines->of_program : hook;
}

void replace_accumulated_hook(const at::Tensor& leaf, c10::function_ref<void()> replace) {
  auto& hook = torch::autograd::impl::materialize_autograd_meta(leaf)->post_acc_grad_hooks_;
  if (dynamic_cast<EngineLeafHook*>(hook.get()) == nullptr) return replace();
  std::unique_ptr<EngineLeafHook> engines(static_cast<EngineLeafHook*>(hook.release()));
  hook = std::move(engines->of_program);
  const auto put_back = c10::make_scope_exit([&] {
    engines->of_program = std::move(hook);
    hook = std::move(engines);
  });
  replace();
}

void check_no_hooks(const char* op, const std::string& name, const at::Tensor& leaf) {
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (meta == nullptr) return;
  const bool is_of_unit = dynamic_cast<const EngineLeafHook*>(meta->post_acc_grad_hooks_.get()) != nullptr;
  bool found = accumulated_hook(leaf) != nullptr;
  std::ptrdiff_t others = std::count_if(meta->hooks_.begin(), meta->hooks_.end(), [](const auto& hook) {
    return dynamic_cast<const BoundaryHook*>(hook.get()) == nullptr;
  });
  if (const auto& list = meta->cpp_hooks_list_; list != nullptr) {
    // One of the others calls this list, unless Python has thrown it away. A removed hook leaves a hole.
    if (list.use_count() > 1) --others;
    const auto count = std::count_if(list->begin(), list->end(), [](const auto& hook) { return bool(hook); });
    found = found || count > (is_of_unit ? 1 : 0);
  }
  found = found || others > 0;
  TORCH_CHECK_NOT_IMPLEMENTED(!found, op, ": the parameter '", name,
                              "' has gradient hooks, and another tensor takes its ",
                              "place, where they would never be called\n  have  a parameter of shape ",
                              shape_string(leaf.sizes()), " with hooks\n  fix   register the hooks after ", op);
}

bool has_gradient_hook(torch::autograd::Node& node) {
  const auto& hooks = node.tensor_pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(),
                     [](const auto& hook) { return dynamic_cast<const BoundaryHook*>(hook.get()) != nullptr; });
}

bool comes_from_shard_tensor(const torch::autograd::Node& node) {
  const auto* lambda = dynamic_cast<const LambdaNode*>(&node);
  return lambda != nullptr && lambda->leaves_shard_tensor;
}

void place_gradient(const at::Tensor& leaf, const SpecPtr& spec) {
  ShardTensorImpl* impl = shard_impl(leaf);
  TORCH_INTERNAL_ASSERT(impl != nullptr && leaf.is_leaf() && leaf.requires_grad());
  TORCH_INTERNAL_ASSERT(spec->global_shape() == impl->spec()->global_shape());
  impl->guarded = true;
  add_around(leaf, BoundaryHook(0, leaf, spec));
}

void keep_gradient_sums(const at::Tensor& leaf, bool keep) {
  TORCH_INTERNAL_ASSERT(is_shard_tensor(leaf) && leaf.is_leaf() && leaf.requires_grad());
  install_gradient_hook(leaf);
  for (const auto& hook : torch::autograd::impl::hooks(leaf)) {
    auto* boundary = dynamic_cast<BoundaryHook*>(hook.get());
    if (boundary == nullptr) continue;
    boundary->keeps_sums = keep;
    boundary->last_own = boundary->last_grad = nullptr;
  }
}

void attach_backward(const at::Tensor& input, const at::Tensor& output,
                     std::function<at::Tensor(const at::Tensor&)> backward,
                     const std::function<at::Tensor(const at::Tensor&)>& forward) {
  const at::Tensor& tangent = input._fw_grad(/*level=*/0);
  if (tangent.defined()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        forward, "forward-mode differentiation does not go through what is called here\n  have  a tensor of shape ",
        shape_string(input.sizes()), " with a tangent\n  fix   move the tensor before its tangent is made");
    output._set_fw_grad(forward(tangent), /*level=*/0, /*is_inplace_op=*/false);
  }
  if (!c10::GradMode::is_enabled() || !input.requires_grad()) return;
  const NodePointer node = make_node<LambdaNode>(std::move(backward));
  static_cast<LambdaNode&>(*node).leaves_shard_tensor = is_shard_tensor(input) && !is_shard_tensor(output);
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(output, node);
}

void attach_backward_sink(const at::Tensor& output, std::function<void(const at::Tensor&)> backward) {
  if (!c10::GradMode::is_enabled()) return;
  const auto last = [backward = std::move(backward)](const at::Tensor& grad) {
    backward(grad);
    return at::Tensor();
  };
  torch::autograd::set_history(output, make_node<LambdaNode>(last));
}

}  // namespace moonhalo
