// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/unit_reducer.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/model/model_context.h"
#include "moonhalo/engine/tensor/engine_leaf_hook.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/training/backward_end_callbacks.h"

namespace moonhalo {

struct LeafHook final : EngineLeafHook {
  explicit LeafHook(std::shared_ptr<UnitReducer> reducer) : reducer(std::move(reducer)) {}
  void operator()(const at::Tensor& leaf) override {
    if (!reducer->complete(leaf) && of_program != nullptr) (*of_program)(leaf);
  }
  std::shared_ptr<UnitReducer> reducer;
};

// Holds what is being sent, and what waits for the end of the backward pass.
struct ReducersOfRank {
  std::unique_ptr<PendingGradientSync> travelling;
  std::vector<std::unique_ptr<PendingGradientSync>> dropped;  // received by the pass that comes next
  std::vector<std::shared_ptr<UnitReducer>> with_ready;
  std::vector<std::pair<at::Tensor, at::Tensor>> put_aside;  // leaves and the sums of earlier passes, if any
  std::vector<at::Tensor> with_hooks;                        // of the program, which are called at the end
  BackwardEndCallbacks ends;

  void arrive() {
    dropped.clear();
    if (travelling) std::exchange(travelling, nullptr)->finish();
  }
  void await_end() {
    ends.await([this] { end(); }, [this] { forget(); });
  }
  // Drops what a pass that threw has brought; sums of earlier passes are what they were. It waits for
  // nothing: the error may be this rank's alone.
  void forget() {
    if (ends.waits()) return;  // within another, which may go on
    if (travelling) dropped.push_back(std::move(travelling));
    for (const auto& reducer : std::exchange(with_ready, {})) reducer->forget();
    with_hooks.clear();
    for (; !put_aside.empty(); put_aside.pop_back()) {  // of one leaf the first one is what was there before
      put_aside.back().first.mutable_grad() = std::move(put_aside.back().second);
    }
  }
  void end() {
    if (ends.waits()) return;  // within another: a segment that was computed again
    const c10::AutoGradMode no_grad(false);
    for (const auto& reducer : std::exchange(with_ready, {})) reducer->flush();
    arrive();
    for (auto& [leaf, sum] : std::exchange(put_aside, {})) {
      if (!sum.defined()) continue;
      const at::Tensor& now = leaf.grad();
      leaf.mutable_grad() = now.defined() ? sum.add_(now) : sum;
    }
    // A hook may write parameters, so others that await the end come first: units that still gather them.
    if (with_hooks.empty()) return;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [leaves = std::exchange(with_hooks, {})] { call_hooks(leaves); });
  }
  void note_hook(const at::Tensor& leaf) {
    const auto is_it = [&](const at::Tensor& other) { return other.is_same(leaf); };
    if (accumulated_hook(leaf) != nullptr && std::none_of(with_hooks.begin(), with_hooks.end(), is_it))
      with_hooks.push_back(leaf);
    await_end();
  }
  // In the order in which the gradients were complete, which is the same on all ranks.
  static void call_hooks(const std::vector<at::Tensor>& leaves) {
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& leaf : leaves) {
      if (const auto& hook = accumulated_hook(leaf)) (*hook)(leaf);
    }
  }
};

namespace {

// True if the gradient is a sum over the mesh dims that the leaf is kept in blocks over.
bool is_summed(const at::Tensor& grad, const at::Tensor& leaf) {
  const SpecPtr &held = spec(grad), &own = spec(leaf);
  for (int64_t m = 0; m < own->mesh()->ndim(); ++m) {
    if (held->partial(m) && own->mesh()->size(m) > 1 && (own->layout().uses(m) || !own->has_stored())) return false;
  }
  return true;
}

// The node of a leaf calls its hooks while the leaf has no gradient: an optimizer's step in one would do nothing.
void check_node(const at::Tensor& leaf) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(leaf);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !node || node->post_hooks().empty(),
      "fully_shard, replicate: the AccumulateGrad node of a parameter has a hook, which would be called before the "
      "gradient is reduced over the ranks\n  have  a parameter of shape ",
      shape_string(leaf.sizes()), ", ", spec(leaf)->to_string(),
      "\n  fix   parameter.register_post_accumulate_grad_hook(fn), or use the gradient behind backward; of a hook that "
      "was removed, release the node, too");
}

}  // namespace

std::shared_ptr<UnitReducer> UnitReducer::of(const std::vector<at::Tensor>& leaves, bool sums,
                                             const GradientSyncOptions& options) {
  const std::shared_ptr<UnitReducer> reducer(new UnitReducer(sums, options));
  for (const at::Tensor& leaf : leaves) {
    if (is_shard_tensor(leaf) && leaf.requires_grad() && leaf.is_leaf() && !of(leaf)) reducer->watch(leaf);
  }
  return reducer;
}

std::shared_ptr<UnitReducer> UnitReducer::of(const at::Tensor& leaf) {
  if (torch::autograd::impl::get_autograd_meta(leaf) == nullptr) return nullptr;
  const auto* hook = dynamic_cast<const LeafHook*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
  return hook != nullptr ? hook->reducer : nullptr;
}

void UnitReducer::watch(const at::Tensor& leaf) {
  keep_gradient_sums(leaf, true);
  auto hook = std::make_unique<LeafHook>(shared_from_this());
  hook->of_program = std::move(accumulated_hook(leaf));
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
  leaf.register_hook([reducer = shared_from_this(), leaf = WeakLeaf(leaf.getIntrusivePtr())](const at::Tensor&) {
    if (auto impl = leaf.lock()) reducer->begins(at::Tensor(std::move(impl)));
  });
}

// LibTorch adds to what it finds: a sum of earlier passes would be added to one that is still to be made.
void UnitReducer::begins(const at::Tensor& leaf) {
  const at::Tensor grad = leaf.grad();
  const bool waits = grad.defined() && (!is_shard_tensor(grad) || !is_summed(grad, leaf));
  if (!sums_now() || waits) return;
  ReducersOfRank& rank = *model_context->reducers;
  rank.put_aside.emplace_back(leaf, grad);
  leaf.mutable_grad() = at::Tensor();
  rank.await_end();
}

bool UnitReducer::complete(const at::Tensor& leaf) {
  if (!sums_now()) return false;
  check_node(leaf);
  ReducersOfRank& rank = *model_context->reducers;
  rank.note_hook(leaf);
  if (!is_shard_tensor(leaf.grad())) return true;
  if (ready_.empty()) rank.with_ready.push_back(shared_from_this());
  ready_.push_back(leaf);
  ready_bytes_ += spec(leaf)->global_numel() * static_cast<int64_t>(leaf.element_size());
  if (ready_bytes_ >= options_.bucket_bytes) flush();
  return true;
}

void UnitReducer::flush() {
  if (ready_.empty()) return;
  const c10::AutoGradMode no_grad(false);
  ReducersOfRank& rank = *model_context->reducers;
  std::erase(rank.with_ready, shared_from_this());
  rank.arrive();
  ready_bytes_ = 0;
  rank.travelling =
      std::make_unique<PendingGradientSync>(std::exchange(ready_, {}), /*copies=*/asked_.value_or(false), options_);
}

void UnitReducer::forget() {
  for (const at::Tensor& leaf : std::exchange(ready_, {})) leaf.mutable_grad() = at::Tensor();
  ready_bytes_ = 0;
}

int64_t bucket_bytes_of(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    if (const auto reducer = UnitReducer::of(leaf)) return reducer->options().bucket_bytes;
  }
  return GradientSyncOptions().bucket_bytes;
}

void set_requires_gradient_sync(const std::vector<at::Tensor>& parameters, bool sync) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad() || !is_shard_tensor(parameter)) continue;
    if (const auto reducer = UnitReducer::of(parameter)) {
      reducer->asked_ = sync;
    } else {
      keep_gradient_sums(parameter, !sync);
    }
  }
}

}  // namespace moonhalo
