// SPDX-License-Identifier: Apache-2.0
// Plain parameters in front of blocks:
//
//     parameter --> plain operators --> block --> from_local --> ShardTensor operators --> loss
//
// Each rank's block gives its own addend of the parameter's gradient. The sum is made on the edge from the last plain
// operator into the parameter: what else the parameter does, a penalty say, gives it the same gradient on all ranks,
// and must not be summed.
#include "moonhalo/engine/tensor/front_parameters.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_set>

#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/replicated_values.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/tensor_context.h"
#include "moonhalo/engine/tensor/tensor_meaning.h"

namespace moonhalo {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;
using Words = BlockFront::Words;

constexpr int64_t kMixed = -1;  // for the number of copies, which is then of no interest

// On every node between a block and the leaves that it was computed from.
struct FrontHook final : torch::autograd::FunctionPostHook {
  FrontHook(Addends addends, std::vector<size_t> edges) : addends(std::move(addends)), edges(std::move(edges)) {}

  variable_list operator()(const variable_list& grads, const variable_list&) override {
    variable_list result = grads;
    // The gradient of a sum is whole on all ranks, and a gradient of it has addends, or has not, as it is used.
    TORCH_CHECK_NOT_IMPLEMENTED(edges.empty() || !addends.of_sum || !c10::GradMode::is_enabled(),
                                "backward: no gradients of gradients of parameters that an addend (Partial) was "
                                "computed from\n  have  ",
                                addends.mesh->to_string(), "\n  fix   from_local with Shard, of the rank's rows alone");
    for (const size_t edge : edges) {
      if (result[edge].defined()) result[edge] = addends.sum(result[edge]);
    }
    return result;
  }

  Addends addends;
  std::vector<size_t> edges;  // into parameters
};

const FrontHook* front_hook(const Node& node) {
  for (const auto& hook : node.post_hooks()) {
    if (const auto* front = dynamic_cast<const FrontHook*>(hook.get())) return front;
  }
  return nullptr;
}

// The tensor that a leaf stands for: mostly itself.
const at::Tensor& original_of(const at::Tensor& leaf) {
  const at::Tensor* found = &leaf;
  for (auto it = tensor_context->front_parameters.substitutes.rbegin();
       it != tensor_context->front_parameters.substitutes.rend(); ++it) {
    if (it->first.is_same(*found)) found = &it->second;
  }
  return *found;
}

Node* node_of(const at::Tensor& tensor) { return original_of(tensor).grad_fn().get(); }

// Visits the nodes from `first`, which may be null, to plain leaves; `enter` says whether to go on behind a node.
template <typename Enter, typename Leaf>
void walk(Node* first, const Enter& enter, const Leaf& leaf) {
  if (first == nullptr) return;
  std::vector<Node*> waiting{first};
  std::unordered_set<const Node*> seen{first};
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (comes_from_shard_tensor(*node) || !enter(*node)) continue;
    for (size_t i = 0; i < node->next_edges().size(); ++i) {
      Node* next = node->next_edges()[i].function.get();
      if (next == nullptr) continue;
      if (const auto* end = dynamic_cast<const AccumulateGrad*>(next)) {
        if (is_shard_tensor(end->variable)) continue;
        next = node_of(end->variable);
        if (next == nullptr) {
          leaf(*node, i, original_of(end->variable));
          continue;
        }
      }
      if (seen.insert(next).second) waiting.push_back(next);
    }
  }
}

void add_once(std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  if (std::none_of(list.begin(), list.end(), [&](const at::Tensor& other) { return other.is_same(tensor); }))
    list.push_back(tensor);
}

[[noreturn]] void refuse_mixture(at::IntArrayRef shape) {
  TORCH_CHECK_VALUE(
      false,
      "backward: a plain tensor was computed together with samples of this rank alone, and is combined with "
      "ShardTensors, where plain tensors are the same on all ranks\n  have  a tensor of shape ",
      shape_string(shape), fix(Remedy::kComputeTwice));
}

// Leaves that nothing is said of, as checksums of all ranks: is one of rank `rank` also on all others of its group?
std::optional<int64_t> same_on_group(const std::vector<std::vector<int64_t>>& sums, int64_t rank,
                                     const Addends& addends) {
  for (const int64_t sum : sums[rank]) {
    bool everywhere = sum != 0, alone = true;
    for (int64_t other = 0; other < static_cast<int64_t>(sums.size()); ++other) {
      if (other == rank || !addends.same_group(other, rank)) continue;
      alone = false;
      everywhere = everywhere && std::find(sums[other].begin(), sums[other].end(), sum) != sums[other].end();
    }
    if (everywhere && !alone) return sum;
  }
  return std::nullopt;
}

// 0 for leaves without values, which give no gradient to be mistaken.
std::vector<int64_t> sums_of(const std::vector<at::Tensor>& leaves) {
  std::vector<int64_t> sums;
  for (const at::Tensor& leaf : leaves) sums.push_back(leaf.numel() == 0 ? 0 : checksum(leaf));
  return sums;
}

void compare_unsaid(const std::vector<at::Tensor>& leaves, const Addends& addends, const std::vector<Words>& words) {
  std::vector<int64_t> counts;
  for (const Words& one : words) counts.push_back(one[1]);
  if (std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count == 0; })) return;
  const std::vector<int64_t> mine = sums_of(leaves);
  at::Tensor all = at::empty({c10::sum_integers(counts)}, at::kLong);
  addends.mesh->group().all_gather(at::tensor(mine, at::kLong), counts, all);
  const auto* next = all.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> sums;
  for (const int64_t count : counts) {
    sums.emplace_back(next, next + count);
    next += count;
  }
  for (int64_t rank = 0; rank < addends.mesh->size(); ++rank) {
    const auto same = same_on_group(sums, rank, addends);
    if (!same) continue;
    const auto here = std::find(mine.begin(), mine.end(), *same);
    TORCH_CHECK_VALUE(
        false,
        "from_local: the block was computed from a tensor that requires a gradient, is not a parameter, and is the "
        "same on all ranks: is its gradient the sum over the ranks, or each rank's own?\n  have  ",
        here == mine.end() ? "one on rank " + std::to_string(rank)
                           : "a tensor of shape " + shape_string(leaves[here - mine.begin()].sizes()),
        fix(Remedy::kMakeParameter));
  }
  for (const at::Tensor& leaf : leaves) {
    TensorMeaning& meaning = meaning_to_change(leaf);
    meaning.is_compared = meaning.feeds_own_block = true;
    tensor_context->front_parameters.any_own_data = true;
  }
}

}  // namespace

Addends::Addends(const SpecPtr& spec) : mesh(spec->mesh()), of_sum(spec->has_partial()) {
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    if (spec->layout().uses(m) && mesh->size(m) > 1) dims.push_back(m);
  }
}

bool Addends::same_group(int64_t a, int64_t b) const {
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    const bool differs = mesh->coordinate(a, m) != mesh->coordinate(b, m);
    if (differs && std::find(dims.begin(), dims.end(), m) == dims.end()) return false;
  }
  return true;
}

bool Addends::same_ranks(const Addends& other) const {
  if (mesh == other.mesh) return dims == other.dims;
  const std::vector<int64_t> here = mesh->ranks_of(*other.mesh);
  for (size_t a = 0; a < here.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const auto there = [](size_t rank) { return static_cast<int64_t>(rank); };
      if (same_group(here[a], here[b]) != other.same_group(there(a), there(b))) return false;
    }
  }
  return !here.empty();
}

// A gradient of a gradient has addends, too.
at::Tensor Addends::sum(const at::Tensor& addend) const {
  std::vector<Placement> placements(mesh->ndim());
  for (const int64_t m : dims) placements[m] = partial();
  const SpecPtr spec = make_spec(mesh, addend.sizes(), placements);
  BlockFront(addend).sum_gradients(spec);
  const TrafficScope moving(Traffic::kGradients);
  return full_tensor(from_local(addend, spec));
}

BlockFront::BlockFront(const at::Tensor& block) : shape_(block.sizes()) {
  if (!c10::GradMode::is_enabled() || !block.requires_grad() || is_shard_tensor(block)) return;
  const auto enter = [&](Node& node) {
    if (const FrontHook* hook = front_hook(node)) {
      earlier_.push_back(&hook->addends);
      return false;
    }
    mixed_ = mixed_ || has_gradient_hook(node);
    nodes_.emplace_back(&node, std::vector<size_t>());
    return true;
  };
  walk(node_of(block), enter, [&](const Node&, size_t edge, const at::Tensor& leaf) {
    const TensorMeaning& meaning = meaning_of(leaf);
    if (meaning.same_on_all_ranks()) {
      nodes_.back().second.push_back(edge);
      if (!meaning.is_compared && has_values(leaf)) add_once(copies_, leaf);
    } else if (meaning.said == Said::kNothing && !meaning.is_compared) {
      add_once(unsaid_, leaf);
    }
  });
  for (const auto& [copy, original] : tensor_context->front_parameters.substitutes) {
    const auto is_here = [&](const auto& one) { return one.first == original.grad_fn().get(); };
    mixed_ = mixed_ || (has_gradient_hook(copy) && std::any_of(nodes_.begin(), nodes_.end(), is_here));
  }
}

Words BlockFront::words() const {
  return {mixed_ ? kMixed : static_cast<int64_t>(copies_.size()), static_cast<int64_t>(unsaid_.size())};
}

void BlockFront::compare(const Addends& addends, const std::vector<Words>& words) const {
  const DeviceMesh& mesh = *addends.mesh;
  if (mesh.group().is_fake()) return;
  const c10::AutoGradMode no_grad(false);
  const ScopedStatsPause stats_pause;
  const bool as_many = std::all_of(words.begin(), words.end(), [&](const Words& one) { return one[0] == words[0][0]; });
  if (as_many && settings().check_replicated) {
    for (const at::Tensor& leaf : copies_) {
      compare_values(leaf, mesh, {.where = "from_local", .what = "what the block was computed from", .weight = true});
      meaning_to_change(leaf).is_compared = true;
    }
  }
  compare_unsaid(unsaid_, addends, words);
}

void BlockFront::sum_gradients(const SpecPtr& made, const std::vector<Words>& words) {
  const Addends addends(made);
  if (addends.dims.empty()) return;
  if (std::any_of(words.begin(), words.end(), [](const Words& one) { return one[0] == kMixed; }))
    refuse_mixture(shape_);
  compare(addends, words);
  sum_gradients(addends);
}

void BlockFront::sum_gradients(const SpecPtr& made) {
  const Addends addends(made);
  if (!addends.dims.empty()) sum_gradients(addends);
}

void BlockFront::sum_gradients(const Addends& addends) {
  if (mixed_) refuse_mixture(shape_);
  for (const Addends* before : earlier_) {
    TORCH_CHECK_VALUE(before->same_ranks(addends),
                      "from_local: what this block was computed from is on other ranks already", "\n  have  ",
                      addends.mesh->to_string(), ", and earlier blocks on ", before->mesh->to_string(),
                      "\n  fix   compute the block again for each mesh");
  }
  for (auto& [node, edges] : nodes_) node->add_post_hook(std::make_unique<FrontHook>(addends, std::move(edges)));
  tensor_context->front_parameters.any_in_front = tensor_context->front_parameters.any_in_front || !nodes_.empty();
  nodes_.clear();
}

std::vector<at::Tensor> plain_leaves_behind(const at::Tensor& tensor) {
  std::vector<at::Tensor> leaves;
  if (is_shard_tensor(tensor)) return leaves;
  walk(
      node_of(tensor), [](const Node&) { return true; },
      [&](const Node&, size_t, const at::Tensor& leaf) { add_once(leaves, leaf); });
  return leaves;
}

bool computed_from_parameters(const at::Tensor& tensor) {
  const std::vector<at::Tensor> leaves = plain_leaves_behind(tensor);
  return std::any_of(leaves.begin(), leaves.end(),
                     [](const at::Tensor& leaf) { return meaning_of(leaf).same_on_all_ranks(); });
}

Substitutes::Substitutes(const std::vector<at::Tensor>& copies, const std::vector<at::Tensor>& originals)
    : before_(tensor_context->front_parameters.substitutes.size()) {
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].defined() && copies[i].requires_grad() && !is_shard_tensor(copies[i]))
      tensor_context->front_parameters.substitutes.emplace_back(copies[i], originals[i]);
  }
}

// The ranks have compared what there is to be compared; a copy that lives on is asked no more.
Substitutes::~Substitutes() {
  auto& all = tensor_context->front_parameters.substitutes;
  for (size_t i = before_; i < all.size(); ++i) {
    TensorMeaning meaning = meaning_of(original_of(all[i].second));
    meaning.is_compared = true;
    meaning_to_change(all[i].first) = meaning;
  }
  all.resize(before_);
}

void check_no_own_data(const std::vector<at::Tensor>& parameters) {
  if (!tensor_context->front_parameters.any_own_data) return;
  for (size_t i = 0; i < parameters.size(); ++i) {
    TORCH_CHECK_VALUE(!meaning_of(parameters[i]).feeds_own_block, "parameter ", i + 1, " of ", parameters.size(),
                      " is a plain tensor that is in no module, and samples of this rank alone were computed from it: "
                      "nothing sums its "
                      "gradients over the ranks",
                      "\n  have  a tensor of shape ", shape_string(parameters[i].sizes()),
                      fix(Remedy::kMakeShardTensor));
  }
}

void check_not_in_front(const at::Tensor& tensor) {
  if (!tensor_context->front_parameters.any_in_front) return;
  walk(
      node_of(tensor),
      [&](const Node& node) {
        if (front_hook(node) != nullptr) refuse_mixture(tensor.sizes());
        return true;
      },
      [](const Node&, size_t, const at::Tensor&) {});
}

}  // namespace moonhalo
