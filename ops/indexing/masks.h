// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "moonhalo/engine/dispatch/rules.h"

namespace moonhalo {

/// Returns true if an argument of indices is a mask: bool, or uint8 as PyTorch still allows.
bool is_mask(const TensorArgument& slot);

/// One mask among the indices of x[..., mask, ...]: it stands for the dims [first, last) of x.
struct MaskIndex {
  size_t slot = 0;
  int64_t first = 0, last = 0;
};
/// The only index of a call of aten::index or index_put, if that is a mask that fits; nullopt for any other indices.
std::optional<MaskIndex> single_mask(const OpCall& call);

/// x[mask]: rows stay with their owners, so their number per block depends on the values and is exchanged.
Plan plan_read_mask(const OpCall& call, const MaskIndex& mask);
/// x[mask] = values, as many as there are true elements or fewer that broadcast; x keeps its cut.
Plan plan_write_mask(const OpCall& call, const MaskIndex& mask);

}  // namespace moonhalo
