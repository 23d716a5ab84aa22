// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io {

/// An empty CPU tensor for elements of a file. RuntimeError that names size and dataset when there is less memory than
/// it needs:
/// some kB of a file may claim any number of elements, and a system that hands out more memory than it has kills who
/// uses it.
at::Tensor allocate_for(at::IntArrayRef shape, at::ScalarType dtype, const h5::Where& where);
/// The same for `count` elements of `element_size` bytes that other code will make space for.
void check_fits_memory(const h5::Where& where, at::IntArrayRef shape, double element_size);

/// RuntimeError that says that space for them was refused.
[[noreturn]] void refuse_memory(const h5::Where& where, at::IntArrayRef shape, double element_size);

/// Numbers of as many bytes (1 to 8, or 16), which every communicator moves.
at::ScalarType moved_as(size_t element_size);

}  // namespace moonhalo::io
