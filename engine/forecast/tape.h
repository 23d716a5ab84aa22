// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

/// A training step of a rank, in order, without times. It is plain data: made by a dry run
/// (tape_recorder.h), or by hand in tests. Nothing of this file is collective.

/// The kinds of operators: convolutions, matrix products and attention do arithmetic, all others move memory.
enum class WorkKind : uint8_t { kConvolution, kProduct, kAttention, kOther };
/// Returns "convolution" | "product" | "attention" | "other".
const char* name(WorkKind work);

/// The kinds of collectives, numbered as CommStats::Kind.
enum class Verb : uint8_t { kExchange, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kBarrier };
/// Returns "exchange" | "all_reduce" | ..., as CommStats::name.
const char* name(Verb verb);

/// One call of an operator on this rank's block, which calls no other one, or several of equal shapes. Views are left
/// out.
struct TapeOperator {
  uint32_t name = 0;  ///< in Tape::names: "aten::mm"
  uint32_t key = 0;   ///< in Tape::names: dtypes, sizes and order of memory of its tensors, "f32[2,8]t f32[8,4]"
  WorkKind work = WorkKind::kOther;  ///< what limits it
  uint8_t item = 4;                  ///< bytes of an element of its first tensor
  bool known = true;                 ///< false: its work is not known, macs is 0 (a kernel that does not report it)
  int64_t times = 1;                 ///< the calls of these shapes, one after another, that it stands for
  int64_t macs = 0;         ///< multiplications with an addition of one call: two floating-point operations each
  int64_t bytes = 0;        ///< that one of them reads and writes, each tensor once
  int64_t working_set = 0;  ///< bytes of all its tensors' storage together; of views only what they show
  bool operator==(const TapeOperator&) const = default;
};

/// A collective of a group that blocks until it is done: every verb but an exchange.
struct TapeVerb {
  Verb verb = Verb::kAllReduce;
  uint32_t group = 0;    ///< in Tape::groups
  uint32_t number = 0;   ///< counts the calls on this group within the step, exchanges included, from 0
  int64_t data = 0;      ///< bytes of the whole: the tensor that is reduced or broadcast, all blocks of a gather
  int64_t sent = 0;      ///< bytes that this rank sends, as CommStats counts them
  int64_t messages = 0;  ///< that this rank sends, as CommStats counts them
  uint8_t item = 1;      ///< bytes of an element
  int32_t root = 0;      ///< the place in the group that broadcasts
  bool counted = true;   ///< false: a check or facts of ranks, which CommStats leaves out
  Traffic traffic = Traffic::kOther;  ///< why it is called
};

/// A message of an exchange. The peer is the rank `Tape::rank + offset` of the world.
struct TapePart {
  int32_t offset = 0;
  int64_t bytes = 0;
  auto operator<=>(const TapePart&) const = default;
};

/// Messages between pairs of ranks begin. They are there when the TapeWait of the same `id` has ended.
struct TapeExchange {
  uint32_t group = 0, number = 0;  ///< as in TapeVerb
  uint32_t id = 0;                 ///< counts the exchanges of the tape
  std::vector<TapePart> sends, receives;
  bool counted = true;                ///< as in TapeVerb
  Traffic traffic = Traffic::kOther;  ///< as in TapeVerb

  /// The number of other ranks that it sends to or receives from.
  int64_t peers() const;
};
/// This rank waits for the exchange `id`.
struct TapeWait {
  uint32_t id = 0;
};

/// A block of memory is given out (`bytes` above 0), or taken back (below 0).
struct TapeBlock {
  int64_t bytes = 0;
  uint32_t id = 0;      ///< counts the blocks of the tape; 0: it was there before the step, and bytes is below 0
  bool device = false;  ///< in the memory of a device, not of the host
};

/// One event. Where it happens: the `module` (in Tape::modules; 0: none), and the part of the step. For TapeBlock that
/// is the place where the block is made or freed.
struct TapeEvent {
  Phase phase = Phase::kScript;
  uint32_t module = 0;
  std::variant<TapeOperator, TapeVerb, TapeExchange, TapeWait, TapeBlock> what = TapeOperator{};
};

/// The ranks of a group, as places of a grid: `rank` of the world is in the group that holds the ranks
/// base + i * stride for i = 0 ... size - 1, of each step; base is `rank` less its own places. All groups along one
/// mesh dim have the same steps. A group whose ranks form no such grid lists its ranks.
struct TapeGroup {
  struct Step {
    int64_t size = 1, stride = 1;
    auto operator<=>(const Step&) const = default;
  };
  std::vector<Step> steps;     ///< the outermost first
  std::vector<int64_t> ranks;  ///< of the world, in the group's order; empty where `steps` say it

  /// The group of these ranks of the world, in the group's order.
  static TapeGroup of(const std::vector<int64_t>& ranks);
  /// The number of ranks.
  int64_t size() const;
  /// The ranks of the world that are in the group of `rank`, in the group's order.
  std::vector<int64_t> members(int64_t rank) const;
  /// The place of `rank` among them, from 0.
  int64_t place(int64_t rank) const;
  auto operator<=>(const TapeGroup&) const = default;
};

/// One step of one rank, from the end of the optimizer's step before to the end of its own.
struct Tape {
  int64_t rank = 0, ranks = 1;              ///< who was run, of how many
  int64_t live = 0;                         ///< bytes of host memory that tensors hold when the step begins
  int64_t optimizer = 0;                    ///< of these, the bytes that the optimizer uses: parameters and its states
  bool gathers_parameters = false;          ///< fully_shard puts parameters together in the step
  bool whole = true;                        ///< false: events are missing, because there were too many
  std::vector<TapeEvent> events;            ///< in order
  std::vector<std::string> names = {""};    ///< of operators, and their keys
  std::vector<std::string> modules = {""};  ///< paths, "blocks.0.fc"; entry 0: none
  std::vector<TapeGroup> groups;

  /// Positions of a string or group in the lists, which get it if they lack it.
  uint32_t name_number(std::string_view name);
  uint32_t module_number(std::string_view path);
  uint32_t group_number(const TapeGroup& group);

  /// Equal for ranks of one kind: the same events in the same order, peers as offsets. Blocks that are freed one after
  /// another may come in any order. What depends only on a rank's place in a group is left out: `rank`, bytes and
  /// messages that it sends in a verb.
  uint64_t hash() const { return hash_of(true); }
  /// The same without the memory: collectors of garbage free it at any time.
  uint64_t hash_without_memory() const { return hash_of(false); }

 private:
  uint64_t hash_of(bool memory) const;
};

/// The tapes of all ranks: a tape for each kind of ranks.
struct RankTapes {
  std::vector<int64_t> mesh;           ///< sizes of the grid of all ranks, row-major; {ranks} where there is no mesh
  std::vector<std::string> mesh_dims;  ///< the names of its dims
  std::vector<Tape> kinds;             ///< each the tape of its smallest rank that was run
  std::vector<int32_t> kind_of;        ///< of each rank of the world: its position in `kinds`
};

}  // namespace moonhalo
