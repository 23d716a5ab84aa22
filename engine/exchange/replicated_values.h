// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// The value that is compared, and its name in messages: "WHERE: WHAT, a plain tensor, ...".
struct Comparison {
  std::string where, what;
  bool weight = false;
  uint64_t sample = 0;  ///< not 0: of large tensors some pieces alone, others for another number
};

/// ValueError on every rank of `mesh`, naming who holds what, unless all hold the same values in the same shape and
/// dtype. Zeros of either sign and NaNs of any bits are equal; floating-point values within some roundings of the
/// largest one pass with a warning.
/// Collective over the mesh; uncounted. `tensor`: strided, with storage, on any device.
void compare_values(const at::Tensor& tensor, const DeviceMesh& mesh, const Comparison& comparison);

/// ValueError on every rank of `mesh` unless all give the same key of random numbers. Collective over the mesh;
/// uncounted.
void compare_keys(uint64_t key, const DeviceMesh& mesh, const std::string& where);

/// A checksum of bytes in their order.
uint64_t checksum(const void* bytes, size_t count, uint64_t seed = 0);
/// A checksum of a tensor's values, shape and dtype; 0 where it has no values (has_values).
int64_t checksum(const at::Tensor& tensor);
/// Not those that are deferred, of another layout, or without memory.
bool has_values(const at::Tensor& tensor);

}  // namespace moonhalo
