// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/dispatch/result_strides.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {

class CallScope;

/// The plan of one kind of call, ready to run.
struct Decision {
  struct Move {  // per slot
    int arg = 0;
    int item = -1;
    SpecPtr given;                                   // null: undefined; the decision's key holds its address
    SpecPtr required;                                // null: taken as it is
    std::unique_ptr<Redistribution> redistribution;  // null: as required, or moved together with others (decide.cpp)
    bool resolves = false;  // kept in the tensor: Partials summed up, or copies cut to write them
    bool written = false;

    bool is_moved() const { return given && required && required != given; }
  };
  std::vector<int64_t> key;
  Plan plan;
  std::vector<Move> moves;
  bool may_send = false;     // inputs move, or a run of the rule's own
  uint64_t tag = 0;          // operator, specs and the key's other arguments by content: the same on all ranks
  ResultStrides strides;     // of results that are not row-major
  bool any_order = false;    // of the results on a plain tensor, as far as is known
  bool foreign = false;      // carried out by a kernel that may read memory as the tensors' strides say
  bool keeps_value = false;  // copies and views of all elements: the result's origin is its source's
};

/// Describes one call: placements given and, where they were moved, required; of the results; bytes this rank sent.
struct TraceRecord {
  std::string op;
  std::vector<std::string> inputs, outputs;
  int64_t bytes = 0;
  bool gathered = false;
  Traffic traffic = Traffic::kNone;  ///< why bytes were sent or received
  /// The order in which edges were sent, computing was done and edges had arrived, of this call and what it called; and
  /// the times of those exchanges.
  HaloEvents halo = {};
  HaloTimes times = {};
};

/// Calls of one operator by this rank, and the bytes that it sent for them.
struct OperatorCounts {
  int64_t calls = 0, gathered = 0, bytes = 0;
};

/// The boxed fallback: every ATen call that has a ShardTensor in it, forward and backward. One per thread, so that
/// thread ranks share nothing; its decisions are bounded in number.
class Dispatch {
 public:
  static Dispatch& of_this_thread();
  void run(const c10::OperatorHandle& op, Stack& stack);

  /// Calls by how they were carried out, for traces and tests.
  struct Counts {
    int64_t calls = 0, planned = 0, decomposed = 0, gathered = 0;
  };
  Counts counts;
  /// While not null, every operator that is carried out is added to it.
  std::vector<TraceRecord>* trace = nullptr;
  /// Operators that were gathered because no rule covers them, with how often.
  std::unordered_map<std::string, int64_t> gathered;
  /// Every operator that was carried out, by name; composite ones count as what they are made of.
  std::map<std::string, OperatorCounts> operator_counts() const;
  void reset_operator_counts();
  /// Forgets every decision (and lets go of their meshes).
  void clear();

 private:
  struct Entry;
  Entry& entry(const c10::OperatorHandle& op);
  const Decision* find(Entry& entry);
  std::shared_ptr<Decision> decide(const OperatorFacts& facts, const c10::OperatorHandle& op, const Stack& stack);
  void remember(Entry& entry, std::shared_ptr<const Decision> decision);
  Plan plan(const OperatorFacts& facts, const OpCall& call);
  static void reuse_plan_without_trivial_dims(const Rule& rule, const OpCall& call, Plan& plan);
  void run_decision(Entry& entry, const Decision& decision, const c10::OperatorHandle& op, Stack& stack);
  void execute(const OperatorFacts& facts, const Decision& decision, const c10::OperatorHandle& op, Stack& stack,
               uint64_t origin, const CallScope* scope);
  uint64_t original_origin(const OperatorFacts& facts, const Stack& stack) const;
  bool write_key(const OperatorFacts& facts, const Stack& stack);

  std::unordered_map<const void*, std::unique_ptr<Entry>> entries_;
  // The traits of the operators called last, by address: a program has some dozens.
  std::array<std::pair<const void*, Entry*>, 256> recent_{};
  // Scratch, as long as the longest key so far.
  struct Key {
    std::vector<int64_t> words = std::vector<int64_t>(64);
    size_t size = 0;
    void push(int64_t word) {
      if (size == words.size()) [[unlikely]]
        words.resize(2 * size);
      words[size++] = word;
    }
    at::ArrayRef<int64_t> get() const { return {words.data(), size}; }
  } key_;
  // With the key: the origins of the call's tensors and the numbers that its key leaves out, as a tag; the first of
  // these origins.
  uint64_t origins_ = 0, first_origin_ = 0;
  int64_t decisions_ = 0;
  CallLog& log_ = CallLog::of_this_thread();
};

/// The plan of a call that no rule covers: its tensors are gathered, what it writes is put back. Throws where that is
/// refused (`fallback`) or would be wrong (random operators).
Plan gather_plan(const OperatorFacts& facts, const OpCall& call, Fallback fallback);

}  // namespace moonhalo
