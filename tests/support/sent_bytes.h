// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Functions.h>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo::testing {

/// The bytes that all ranks of the mesh together have sent since each called reset_stats(). Collective over the mesh.
/// Ranks that are processes share no variable of a test, so the sum is a message.
inline int64_t bytes_of_all_ranks(const DeviceMesh& mesh) {
  at::Tensor bytes = at::full({1}, mesh.group().stats().total().bytes, at::kLong);
  mesh.group().all_reduce(bytes);
  return bytes.item<int64_t>();
}

}  // namespace moonhalo::testing
