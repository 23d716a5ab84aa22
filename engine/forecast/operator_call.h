// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>

#include <functional>
#include <string>
#include <vector>

namespace moonhalo {

/// A call of an operator on a tape, to repeat it with tensors of the same sizes. Not collective.
struct OperatorCall {
  std::string key;                     ///< its name, a space, and its shapes: as in Machine::operators
  c10::OperatorName name{"", ""};      ///< with its overload
  std::vector<c10::IValue> arguments;  ///< tensors among them are on the meta device
};

/// The values with changed tensors: those of lists, too, but none that is undefined. Lists are new ones. Not
/// collective.
using ChangeTensor = std::function<at::Tensor(const at::Tensor&)>;
std::vector<c10::IValue> with_tensors(const std::vector<c10::IValue>& values, const ChangeTensor& change);
/// Calls `look` with these tensors, in the same order. Not collective.
void look_at_tensors(const std::vector<c10::IValue>& values, const std::function<void(const at::Tensor&)>& look);
/// The elements of memory from the first to the last that a tensor of its sizes and strides has. Not collective.
int64_t elements_of_memory(const at::Tensor& tensor);
/// Makes `to` a number that is written in a program, such as the 2 of x * 2, if `from` is one. Not collective.
void copy_wrapped_number(const at::Tensor& from, const at::Tensor& to);
/// Writes numbers from 0.25 to 0.75 in no order, the same each time. Integers are zero, so that they are valid as
/// indices; a tensor without dims is 1, since a program divides by such numbers. Not collective.
void fill_with_numbers(const at::Tensor& tensor);

/// The arguments with tensors of the meta device in the place of theirs: they hold no memory. Not collective.
std::vector<c10::IValue> without_memory(const std::vector<c10::IValue>& arguments);
/// The call's arguments with tensors of the CPU in the place of those of the meta device: numbers from 0.25 to 0.75 in
/// no order, the same each time. Integers are those of fill_with_numbers(), but the indices of max_pool2d's backward
/// are spread over what was pooled. Not collective.
std::vector<c10::IValue> with_memory(const OperatorCall& call);
/// Bytes of the memory of strided tensors among arguments or results; of meta ones, what with_memory would take.
/// Not collective.
int64_t bytes_of_tensors(const std::vector<c10::IValue>& values);

/// Calls the operator once. Returns its results; throws what the operator throws. Not collective.
std::vector<c10::IValue> repeat_call(const OperatorCall& call, const std::vector<c10::IValue>& arguments);

}  // namespace moonhalo
