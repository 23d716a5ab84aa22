// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/aten/operators.h"
#include "tests/support/placements.h"

namespace moonhalo::testing {

/// One call of an operator that works on plain tensors.
struct Sample {
  Operator op;
  std::string text;                    ///< its arguments (notation.h)
  std::vector<c10::IValue> arguments;  ///< by position in the schema
  List tensors;                        ///< those among them, lists flattened
  std::vector<bool> written;           ///< per tensor: the operator writes to it
  std::vector<bool> expected;          ///< per tensor: a gradient can be asked for
  int derivatives = 0;                 ///< 0 none, 1 gradients, 2 gradients of gradients
  bool random = false;                 ///< compared with a world of one rank and the same seed, not with plain tensors
  bool values = true;  ///< false: contents are arbitrary (empty_like), only shapes and dtypes are compared
  double tolerance = 1e-10;
};

/// The sample that `text` describes, or null (reason in `problem`) when it does not fit the schema or the plain call
/// throws. Runs the plain call to find out what can be compared.
std::optional<Sample> make_sample(const Operator& op, const std::string& text, std::string* problem = nullptr);

/// A sample of the same operator with other arguments (those of out= given), or null when the plain call throws. Its
/// derivatives are not looked for.
std::optional<Sample> with_arguments(Sample sample, std::vector<c10::IValue> arguments, std::string text);

/// The same call with empty out= tensors; null where those have no notation.
std::optional<Sample> with_empty_outs(const Sample& sample);

/// Up to `most` samples with arguments made from the schema: names and types suggest values, the plain call decides.
std::vector<Sample> guessed_samples(const Operator& op, size_t most);

/// Up to `most` samples of an operator: those of the tables, then arguments made from the schema by trying. `problem`:
/// why the last line of the tables does not fit.
std::vector<Sample> samples_of(const Operator& op, size_t most, std::string* problem = nullptr);

/// Calls the operator on `tensors` (plain or ShardTensors) in the place of the sample's own. Tensors that are written
/// are cloned first. Gives the results, lists flattened and numbers as 0-d tensors, then what was written.
List call(const Sample& sample, const List& tensors);
/// Like call, on exactly these tensors and by `callee`, which is given the operator and its arguments and leaves its
/// results.
List call_by(const Sample& sample, const List& tensors,
             const std::function<void(const c10::OperatorHandle&, torch::jit::Stack&)>& callee);

/// A line of a sample table: names of operators (bases, or one overload), then arguments.
struct SampleLine {
  std::string_view names;  ///< "softmax log_softmax", "sum.dim_IntList", or "aten::sum" for one overload
  std::string_view text;
};
/// Tables one after the other.
std::vector<SampleLine> join_tables(std::initializer_list<std::span<const SampleLine>> tables);
/// The tables, by family.
std::vector<SampleLine> shape_samples();
std::vector<SampleLine> reduction_samples();
std::vector<SampleLine> index_samples();
std::vector<SampleLine> layer_samples();
std::vector<SampleLine> algebra_samples();
std::vector<SampleLine> other_samples();
/// All of them.
std::vector<SampleLine> sample_lines();

}  // namespace moonhalo::testing
