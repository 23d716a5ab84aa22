// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "tests/aten/trial.h"

namespace moonhalo::testing {

/// The sample with each of its tensors cut on each of its dims so that a rank is left without rows: one of two, and
/// one of three. `turn` says which of three, and which of two comes first; `turns` of them from there on (3: each
/// rank in turn). The other tensors are cut in the same way where they have the same shape, else replicated.
std::vector<Trial> trials_with_empty_blocks(const Sample& sample, int64_t turn, int64_t turns);

}  // namespace moonhalo::testing
