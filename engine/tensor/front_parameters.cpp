// SPDX-License-Identifier: Apache-2.0
// Plain parameters in front of blocks:
//
//     parameter --> plain operators --> block --> from_local --> ShardTensor operators --> loss
//
// Each rank's block gives its own addend of the parameter's gradient. The sum is made on the edge from the last plain
// operator into the parameter: what else the parameter does, a penalty say, gives it the same gradient on all ranks,
// and must not be summed.
#include "moonhalo/engine/tensor/front_parameters.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "moonhalo/engine/base/autograd_compat.h"
#include "moonhalo/engine/base/rank_context.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Tensors as long as they live, by their object.
struct Leaves {
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> entries;
  size_t sweep_at = 1024;

  void add(const at::Tensor& tensor) {
    // An entry of a dead tensor holds its address, so no other can have it.
    entries.try_emplace(tensor.unsafeGetTensorImpl(), tensor.getIntrusivePtr());
    if (entries.size() <= sweep_at) return;
    std::erase_if(entries, [](const auto& entry) { return entry.second.expired(); });
    sweep_at = std::max<size_t>(1024, 2 * entries.size());
  }
  bool has(const at::Tensor& tensor) const { return entries.contains(tensor.unsafeGetTensorImpl()); }
};
struct Known {
  Leaves parameters, own_data;
  bool any_in_front = false;  // whether a hook was ever set
};
const RankLocal<Known> known;

// The ranks that have addends: those that differ from each other along `dims` alone.
struct Addends {
  MeshPtr mesh;
  std::vector<int64_t> dims;

  explicit Addends(const SpecPtr& spec) : mesh(spec->mesh()) {
    for (int64_t m = 0; m < mesh->ndim(); ++m) {
      if (spec->layout().uses(m) && mesh->size(m) > 1) dims.push_back(m);
    }
  }
  bool same_group(int64_t a, int64_t b) const {
    for (int64_t m = 0; m < mesh->ndim(); ++m) {
      const bool differs = mesh->coordinate(a, m) != mesh->coordinate(b, m);
      if (differs && std::find(dims.begin(), dims.end(), m) == dims.end()) return false;
    }
    return true;
  }
  // Collective over both meshes at their first use.
  bool same_ranks(const Addends& other) const {
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
  at::Tensor sum(const at::Tensor& addend) const {
    std::vector<Placement> placements(mesh->ndim());
    for (const int64_t m : dims) placements[m] = partial();
    return full_tensor(from_local(addend, make_spec(mesh, addend.sizes(), placements)));
  }
};

// On every node between a block and the leaves that it was computed from.
struct FrontHook final : torch::autograd::FunctionPostHook {
  FrontHook(Addends addends, std::vector<size_t> edges) : addends(std::move(addends)), edges(std::move(edges)) {}

  variable_list operator()(const variable_list& grads, const variable_list&) override {
    variable_list result = grads;
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

// Visits the nodes from `first` to plain leaves; `enter` says whether to go on behind a node.
template <typename Enter, typename Leaf>
void walk(Node* first, const Enter& enter, const Leaf& leaf) {
  std::vector<Node*> waiting{first};
  std::unordered_set<const Node*> seen{first};
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (comes_from_shard_tensor(*node) || !enter(*node)) continue;
    for (size_t i = 0; i < node->next_edges().size(); ++i) {
      Node* const next = node->next_edges()[i].function.get();
      if (next == nullptr) continue;
      if (const auto* end = dynamic_cast<const AccumulateGrad*>(next)) {
        if (!is_shard_tensor(end->variable)) leaf(*node, i, end->variable);
      } else if (seen.insert(next).second) {
        waiting.push_back(next);
      }
    }
  }
}

[[noreturn]] void refuse_mixture(at::IntArrayRef shape) {
  TORCH_CHECK_VALUE(false, "backward: a plain tensor was computed together with samples of this rank alone, and meets "
                    "ShardTensors, where plain tensors are the same on all ranks\n  have  a tensor of shape ", shape_string(shape),
                    "\n  fix   compute it anew from the parameters for each of the two, or give what it meets the samples as "
                    "mh.local_batch makes them");
}

}  // namespace

void note_parameter(const at::Tensor& leaf) {
  if (!is_shard_tensor(leaf)) known->parameters.add(leaf);
}

bool is_noted_parameter(const at::Tensor& leaf) { return known->parameters.has(leaf); }

bool computed_from_parameters(const at::Tensor& tensor) {
  if (is_shard_tensor(tensor) || !tensor.grad_fn()) return false;
  bool found = false;
  walk(
      tensor.grad_fn().get(), [](const Node&) { return true; },
      [&](const Node&, size_t, const at::Tensor& leaf) { found = found || known->parameters.has(leaf); });
  return found;
}

at::Tensor sum_gradients_in_front(const at::Tensor& made) {
  if (!made.grad_fn()) return made;
  const Addends addends(spec(made));
  if (addends.dims.empty()) return made;
  Node* const first = made.grad_fn().get();
  std::vector<std::pair<Node*, std::vector<size_t>>> nodes;
  const auto enter = [&](Node& node) {
    if (const FrontHook* hook = front_hook(node)) {
      TORCH_CHECK_VALUE(hook->addends.same_ranks(addends), "from_local: what this block was computed from is on other ranks already",
                        "\n  have  ", spec(made)->to_string(), ", and earlier blocks on ", hook->addends.mesh->to_string(),
                        "\n  fix   compute the block anew for each mesh");
      return false;
    }
    if (&node != first && has_gradient_hook(node)) refuse_mixture(made.sizes());
    nodes.emplace_back(&node, std::vector<size_t>());
    return true;
  };
  walk(first, enter, [&](const Node& node, size_t edge, const at::Tensor& leaf) {
    if (&node == first) return;  // the block is the leaf
    if (known->parameters.has(leaf)) {
      nodes.back().second.push_back(edge);
    } else {
      known->own_data.add(leaf);
    }
  });
  for (auto& [node, edges] : nodes) node->add_post_hook(std::make_unique<FrontHook>(addends, std::move(edges)));
  known->any_in_front = true;
  return made;
}

void check_no_own_data(const std::vector<at::Tensor>& parameters) {
  if (known->own_data.entries.empty()) return;
  for (size_t i = 0; i < parameters.size(); ++i) {
    TORCH_CHECK_VALUE(!known->own_data.has(parameters[i]), "parameter ", i + 1, " of ", parameters.size(),
                      " is a plain tensor that is in no module, and samples of this rank alone were computed from it: nobody sums its "
                      "gradients over the ranks",
                      "\n  have  a tensor of shape ", shape_string(parameters[i].sizes()), "\n  fix   if all ranks have the same one, make it mh.nn.Parameter(t) before it is used; if it is this "
                      "rank's own, make it a ShardTensor (mh.from_local) first");
  }
}

void check_not_in_front(const at::Tensor& tensor) {
  if (!known->any_in_front) return;
  walk(
      tensor.grad_fn().get(),
      [&](const Node& node) {
        if (front_hook(node) != nullptr) refuse_mixture(tensor.sizes());
        return true;
      },
      [](const Node&, size_t, const at::Tensor&) {});
}

}  // namespace moonhalo
