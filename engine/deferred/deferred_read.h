// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <functional>
#include <optional>

#include "moonhalo/engine/base/box.h"

namespace moonhalo {

/// Returns the elements in a box of a tensor that is stored elsewhere, as in a file: row-major, on the CPU.
using ReadBox = std::function<at::Tensor(const Box& box)>;

/// Returns a deferred tensor (deferred.h) whose values are read when it is materialized: each rank reads the box that
/// it owns. `read` may be called several times, or never. Not collective.
at::Tensor deferred_read(at::IntArrayRef shape, const at::TensorOptions& options, ReadBox read);

/// Returns from how many elements on tensors are deferred in the innermost DeferredInit scope of this thread; nothing
/// outside of a scope. Not collective.
std::optional<int64_t> smallest_deferred();

}  // namespace moonhalo
