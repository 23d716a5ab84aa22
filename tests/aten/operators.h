// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace moonhalo::testing {

/// An overload of namespace aten that is registered with the dispatcher.
struct Operator {
  c10::OperatorHandle handle;
  std::string name;  ///< "aten::sum.dim_IntList"
  std::string base;  ///< "sum"; of an in-place form without its last underscore: "add" of aten::add_.Tensor
  bool in_place = false;
  bool out = false;     ///< has an out= argument
  std::string outside;  ///< why it is not an operator that a LibTorch user calls on tensors; "" when it is
};

/// All of them, sorted by name. The rule that leaves some out is in operators.cpp, each with its reason.
const std::vector<Operator>& all_operators();
/// Those that a LibTorch user can call on tensors.
std::vector<Operator> callable_operators();
/// By full name. Throws ValueError with the nearest name.
const Operator& find_operator(const std::string& name);

}  // namespace moonhalo::testing
