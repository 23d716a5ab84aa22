// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Placements by the factory's name: {"zeros", {shard(0)}}. Those that are not named make plain tensors.
using FactoryPlan = std::map<std::string, std::vector<Placement>>;

/// The factories that can be named: arange, eye, full, linspace, ones, rand, randint, randn, zeros. Not `empty`, out of
/// which LibTorch makes plain tensors of its own.
const std::vector<std::string>& known_factories();
/// All of them, Replicate.
FactoryPlan replicated_factories(const DeviceMesh& mesh);
/// ValueError for a name that is not among the known ones (with the nearest) or a number of placements that is not the
/// mesh's.
void check_factories(const FactoryPlan& plan, const DeviceMesh& mesh);

/// While one lives on a thread, the named factories make ShardTensors: only this rank's block, the same numbers as on
/// one device. Every rank must make the same calls. ValueError where a tensor has not the dims that its placements cut.
/// May be nested: the inner one counts. Calls that LibTorch's own composite functions make are captured like the
/// program's; what Moonhalo itself makes is not.
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
  CaptureFactories* outer_;
  bool before_;
};

}  // namespace moonhalo
