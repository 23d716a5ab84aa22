// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace moonhalo {

/// The messages that carry halos. The received bits do not depend on it.
enum class HaloBackend : uint8_t {
  kP2p,       ///< point-to-point messages between the ranks that share rows; completed separately
  kAllToAll,  ///< one packed all-to-all over the mesh, which returns when all data has arrived
};

/// Settings of all halo exchanges of a thread, for set_halo.
struct HaloOptions {
  /// If true, operators compute the part that needs no halo while halos are in flight. If false, they wait first and
  /// then do the same computations in the same order. With kAllToAll they always wait first.
  bool overlap = true;
  HaloBackend backend = HaloBackend::kP2p;
  /// Has no effect: every reader of a tensor fetches its halos. set_halo accepts it and returns it.
  bool keep = false;
  bool operator==(const HaloOptions&) const = default;
};

enum class OutputCut : uint8_t;  // engine/tensor/output_cut.h
enum class Fallback : uint8_t;   // engine/tensor/shard_tensor.h

/// All that a program sets for one rank, in one record: what set_halo, set_output_cut and the like change. To put all
/// of it back use ScopedSettings (engine/dispatch/scoped_settings.h).
struct Settings {
  HaloOptions halo = {};            ///< of set_halo
  OutputCut output_cut{};           ///< kGeometry
  Fallback fallback{};              ///< kReplicate
  bool check_replicated = true;     ///< compare plain tensors between ranks
  bool ordered_reductions = false;  ///< sums on devices in the order of ranks, not as NCCL makes them
  std::string device_link = {};     ///< "nccl", "staged", or "" for what fits
  std::optional<std::chrono::milliseconds> time_limit = {};  ///< of new communicators; none: default_time_limit()
  bool operator==(const Settings&) const = default;
};

/// Returns the settings of this thread's rank, to read. The functions set_... change them. Not collective.
const Settings& settings();

}  // namespace moonhalo
