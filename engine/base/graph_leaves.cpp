// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/graph_leaves.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>

namespace moonhalo {

std::vector<at::Tensor> graph_leaves(const std::vector<at::Tensor>& tensors) {
  using torch::autograd::Node;
  std::vector<Node*> waiting;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) visit(tensor.grad_fn().get());
  }
  std::vector<at::Tensor> leaves;
  while (!waiting.empty()) {
    Node* const node = waiting.back();
    waiting.pop_back();
    if (const auto* end = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) leaves.push_back(end->variable);
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return leaves;
}

}  // namespace moonhalo
