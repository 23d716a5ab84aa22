// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace moonhalo {

/// Autograd's graph holds its nodes by shared_ptr up to LibTorch 2.11, by intrusive_ptr in 2.15.
using NodePointer = decltype(torch::autograd::Edge::function);

template <typename Node, typename Pointer>
Pointer adopt_node(Node* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    // Found by the argument's type: LibTorch 2.15 has no such function.
    return Pointer(node, [](auto* released) { deleteNode(released); });
  } else {
    return Pointer::unsafe_steal_from_new(node);
  }
}

/// A new node of class `Node`, owned as the graph owns its nodes.
template <typename Node, typename... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  return adopt_node<Node, NodePointer>(new Node(std::forward<Arguments>(arguments)...));
}

}  // namespace moonhalo
