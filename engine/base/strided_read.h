// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>

#include "moonhalo/engine/base/box.h"

namespace moonhalo {

/// Reads `bytes` bytes of a storage from its byte `begin` on.
using ReadBytes = c10::function_ref<void(int64_t begin, int64_t bytes, void* target)>;

/// Returns the elements in a box of a strided tensor whose storage is elsewhere, as in a file: row-major, on the CPU.
/// Only bytes of rows that are in the box are read, and those between elements along the innermost dim. `offset`: of
/// the tensor's first element in its storage, in elements.
at::Tensor read_strided_box(const Box& box, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype,
                            ReadBytes read);

}  // namespace moonhalo
