// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>

#include <string>
#include <vector>

namespace moonhalo {

/// A call of an operator on a tape, to repeat it with tensors of the same sizes. Not collective.
struct OperatorCall {
  std::string key;                     ///< its name, a space, and its shapes: as in Machine::operators
  c10::OperatorName name{"", ""};      ///< with its overload
  std::vector<c10::IValue> arguments;  ///< tensors among them are on the meta device
};

/// The arguments with tensors of the meta device in the place of theirs: they hold no memory. Not collective.
std::vector<c10::IValue> without_memory(const std::vector<c10::IValue>& arguments);
/// The arguments with tensors of the CPU in the place of those of the meta device: 0.5, and zero where numbers are
/// integers, so that they are valid as indices. Not collective.
std::vector<c10::IValue> with_memory(const std::vector<c10::IValue>& arguments);
/// Bytes of the memory that with_memory would take. Not collective.
int64_t memory_of_arguments(const std::vector<c10::IValue>& arguments);

/// Calls the operator once and drops its results. Throws what the operator throws. Not collective.
void repeat_call(const OperatorCall& call, const std::vector<c10::IValue>& arguments);

}  // namespace moonhalo
