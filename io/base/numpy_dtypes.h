// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace moonhalo::io {

/// The name that numpy gives a dtype, without the order of bytes: "f4" for float32, "b1" for bool. "" where numpy has
/// none, as for bfloat16.
std::string_view numpy_name(at::ScalarType dtype);
/// The dtype of such a name; nothing for others: "M8", "U3".
std::optional<at::ScalarType> numpy_dtype(std::string_view name);

}  // namespace moonhalo::io
