// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::testing {

/// Deterministic values in (-1, 1), integers in [-5, 5] (unsigned: [0, 10]), coins for bool; does
/// not touch LibTorch's generator.
at::Tensor make_tensor(at::IntArrayRef shape, int64_t seed, at::ScalarType dtype = at::kDouble);

/// This rank's share of `full` as a ShardTensor without history, made without communication; replicated where
/// `placements` is empty. The addends of a Partial differ from rank to rank and are not trivial.
at::Tensor shard_of(const at::Tensor& full, const MeshPtr& mesh, const std::vector<Placement>& placements);

/// "" when equal within the tolerance, absolute and relative (NaN equals NaN), else what differs. Plain tensors.
std::string difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance);

}  // namespace moonhalo::testing
