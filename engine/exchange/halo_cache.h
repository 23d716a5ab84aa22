// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {

/// The cache of halos that belongs to one tensor. An exchange looks its map up here, and stores the halos that it
/// receives. Both functions return the same kind of answer (null or not) on every rank.
class HaloCache {
 public:
  /// The halo rows that one rank received through one interval map.
  struct Entry {
    std::shared_ptr<const IntervalMap::Key> key;
    uint32_t block_version = 0;     ///< version of this rank's block when its rows were sent
    std::vector<at::Tensor> parts;  ///< by peer and region, in the order of IntervalMap::received
    bool arrived = false;
  };
  virtual ~HaloCache() = default;

  /// Returns the entry of an equal map, or null.
  virtual std::shared_ptr<const Entry> find(const IntervalMap& map) const = 0;
  /// Returns an entry to fill with the halos of this map; null if nothing is sent or cached.
  virtual std::shared_ptr<Entry> keep(const IntervalMap& map) const = 0;
};
/// Null: nothing is cached.
using HaloCachePtr = std::shared_ptr<const HaloCache>;

}  // namespace moonhalo
