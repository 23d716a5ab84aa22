// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <string>
#include <string_view>
#include <vector>

#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// Work of single operators, from the shapes of their tensors. Not collective.

/// The defined tensors among arguments or results, in order, those of lists included.
std::vector<at::Tensor> tensors_among(c10::ArrayRef<const c10::IValue> values);
inline std::vector<at::Tensor> tensors_among(const std::vector<c10::IValue>& values) {
  return tensors_among(c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
}

/// The kind of work of the operator `name`: convolutions, matrix products and attention, with their derivatives, are
/// those whose multiplications are counted.
WorkKind work_of(std::string_view name);

/// True for operators that write their first argument without reading it, such as aten::copy_.
bool overwrites_first(std::string_view name);

/// True for operators that give views of their arguments, or memory that they do not write: they do no work.
bool does_no_work(const at::RecordFunction& call);

/// Memory of a call: `bytes` are read and written, and its tensors hold `working_set` bytes together.
struct OperatorMemory {
  int64_t bytes = 0, working_set = 0;
};
OperatorMemory memory_of(const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out);

/// "f32[2,8]t f32[8,4] > f32[2,4]": dtypes and sizes of arguments and results; t: not in row-major order.
std::string shapes_key(const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out);

}  // namespace moonhalo
