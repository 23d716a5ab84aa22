// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moonhalo {

/// Checks what the operators on points want of their arguments, decided from global shapes; errors as in knn.h.
void check_points(const char* op, at::IntArrayRef query, at::IntArrayRef points, at::ScalarType query_dtype,
                  at::ScalarType points_dtype);
void check_most(const char* op, const char* what, int64_t most, int64_t limit);
void check_radius(double radius, int64_t max_neighbors);
void check_indices(at::IntArrayRef query_rows, at::IntArrayRef indices, at::ScalarType dtype);

/// [batch..., rows, rest...] with the batch dims as one.
at::Tensor one_batch(const at::Tensor& tensor, int64_t batch_dims);

}  // namespace moonhalo
