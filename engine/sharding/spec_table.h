// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The specs in use on one mesh, by content, and what plans for them go by. Weak: a spec leaves the table when its last
/// user lets go.
struct SpecTable {
  SpecPtr intern(Layout layout);
  void forget(const ShardSpec* spec);
  size_t size() const;
  uint64_t made = 0;                                               ///< tensors that the mesh's ranks have made together
  double macs_per_byte = std::numeric_limits<double>::infinity();  ///< see dispatch/divided_work.h

 private:
  struct Hash {
    size_t operator()(const std::vector<int64_t>& key) const;
  };
  struct Entry {
    const ShardSpec* spec;
    c10::weak_intrusive_ptr<const ShardSpec> weak;
  };
  mutable std::mutex mutex_;
  std::unordered_map<std::vector<int64_t>, Entry, Hash> specs_;
};

/// Sets a function that is called for each spec that this rank makes, if no tensor has it at that time; null for none.
/// Returns the one before. Not collective.
std::function<void(const ShardSpec&)> watch_specs(std::function<void(const ShardSpec&)> made);

}  // namespace moonhalo
