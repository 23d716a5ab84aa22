// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Placements by factory name: {"zeros", {shard(0)}}. Factories that are not listed make plain tensors.
using FactoryPlan = std::map<std::string, std::vector<Placement>>;

/// Returns the names that a plan may list: arange, eye, full, linspace, ones, rand, randint, randn, zeros. `empty` is
/// not among them, because LibTorch uses it for its own plain tensors. Not collective.
const std::vector<std::string>& known_factories();
/// Returns a plan that lists all of them with Replicate. Not collective.
FactoryPlan replicated_factories(const DeviceMesh& mesh);
/// Throws ValueError for an unknown name (with the nearest one) or a number of placements that is not the number of
/// mesh dims. Not collective.
void check_factories(const FactoryPlan& plan, const DeviceMesh& mesh);

/// Makes the listed factories on this thread return ShardTensors during its lifetime. Only this rank's block is made;
/// the values are those of the same call on one device. Every rank must make the same calls. Throws ValueError if a
/// placement shards a dim that the tensor does not have. Scopes may be nested; the inner one applies. Factory calls
/// inside of LibTorch's composite functions are captured too; those inside of Moonhalo are not.
class CaptureFactories {
 public:
  CaptureFactories(MeshPtr mesh, FactoryPlan plan);
  ~CaptureFactories();
  CaptureFactories(const CaptureFactories&) = delete;
  CaptureFactories& operator=(const CaptureFactories&) = delete;

 private:
  friend struct Captured;
  MeshPtr mesh_;
  FactoryPlan plan_;
  ScopedValue<CaptureFactories*> current_;
  bool before_;
};

}  // namespace moonhalo
