// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "scripting/state.h"

namespace moonhalo::scripting {

/// `mh.Generator{seed = 1}`, for operators that take a generator of the user's.
template <>
inline constexpr const char* kObjectName<at::Generator> = "Generator";

/// Every name that `parse_dtype` knows.
std::vector<std::string> dtype_names();
/// "cpu", "cuda", "cuda:1", "meta"; nothing for other texts.
std::optional<c10::Device> parse_device(const std::string& name);
/// "Tensor float32 [2, 3]".
std::string describe(const at::Tensor& tensor);

}  // namespace moonhalo::scripting
