// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A transform along dims that must each be whole on a rank while they are transformed. All dims commute but one.
struct Transform {
  std::vector<int64_t> dims;   ///< distinct, of the tensor
  int64_t special = -1;        ///< one of them, whose extent may change (-1: none)
  bool special_first = false;  ///< it comes before all others, else after them
  double bytes_before = 1;     ///< of an element before and after `special`; any unit
  double bytes_after = 1;
};

/// One stage: the dims that are transformed while the tensor is held as `held` says (`transformed`: afterwards).
struct PencilStage {
  SpecPtr held, transformed;
  std::vector<int64_t> dims;
};

/// Finds a way from `input` to `output` (of the same shape but for `special`; their cuts may differ there in block
/// sizes):
/// the dims that are whole already are transformed where they are; for the others their cuts move to other dims and in
/// the end back.
///
///     [8, 6] cut by rows, both dims      Shard(0)  along 1 -> Shard(1)  along 0 -> Shard(0)
///     [4, 8, 6] cut by rows, both dims   Shard(1) -> Shard(0)  along both -> Shard(1)
///
/// A cut that moves divides its new dim evenly (balanced_sizes, inside the blocks of a cut that is there already); to
/// which dim, and which dims first, is what makes traffic plus the largest block for every dim's transform least; of
/// equals the outermost dim. Where no dim can take a cut the tensor is gathered over its mesh dims and every rank
/// transforms it. Partials stay.
/// A stage whose dims are all whole in the next one too is left to it. Stages without dims are left out,
/// but the last one is always held as `output`. Pure, the same on every rank.
std::vector<PencilStage> pencil_stages(const Transform& transform, const SpecPtr& input, const SpecPtr& output);

}  // namespace moonhalo
