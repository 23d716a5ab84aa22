// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace moonhalo::testing {

/// The arguments of a call as text, so that a sample, a failure and a ready test are one line.
///
///     d[5,4,3], [0,2], keepdim=true        two positional arguments and a named one; the others take their defaults
///
/// Tensors: KIND[shape], with values that depend on the shape and on the tensor's place in the call alone.
///   d double in (-1, 1)    p double in (0.1, 1)    w double in (1.1, 3)    a double, ascending along the last dim
///   f float32  e bfloat16  c complex double        b bool    l int64, i int32, y uint8 (l[4]<3: in [0, 3))
///   n int64, a permutation of 0 .. size-1 along the last dim
///   s symmetric positive definite    g well-conditioned    t lower triangular, diagonal above 2
///   KIND{1, 2.5} a vector of these values; KIND(2.5) a 0-d tensor
/// Others: 3, 0.5, true, "text", [1, 2], {d[2], d[3]} (tensors), - (None), double long int float bool complex (a
/// dtype).
///
/// Null, and the reason in `problem`, when the text does not fit the schema. out= arguments that the text leaves out
/// are None.
std::optional<std::vector<c10::IValue>> read_arguments(const c10::FunctionSchema& schema, const std::string& text,
                                                       std::string* problem = nullptr);

/// Splits at commas that are in no bracket and no quotes; no spaces at the ends.
std::vector<std::string> split_arguments(const std::string& text);

/// The dtype that a word of the notation names.
std::optional<at::ScalarType> dtype_named(const std::string& word);

}  // namespace moonhalo::testing
