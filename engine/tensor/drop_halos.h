// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/tensor/shard_tensor_meta.h"

namespace moonhalo {

/// Called for a ShardTensor that is given another block.
inline void drop_halos(c10::TensorImpl& impl) {
  if (ShardTensorMeta* notes = notes_of(impl)) notes->halos.reset();
}

}  // namespace moonhalo
