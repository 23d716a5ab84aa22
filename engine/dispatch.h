// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/operator_facts.h"
#include "engine/redistribute.h"
#include "engine/rules.h"
#include "engine/shard_tensor.h"

namespace moonhalo {

/// How one kind of call is carried out, ready to run.
struct Decision {
  struct Move {  // per slot
    int arg = 0;
    int item = -1;
    SpecPtr wanted;                                 // null: taken as it is
    std::unique_ptr<Redistribution> redistribution;  // null: already as wanted
    bool resolves = false;                           // only sums a Partial up: kept in the tensor
    bool written = false;
  };
  std::vector<int64_t> key;
  std::vector<SpecPtr> alive;  // the key holds their addresses
  Plan plan;
  std::vector<Move> moves;
};

/// The boxed fallback: every ATen call that has a ShardTensor in it, forward and backward. One per thread, so that
/// thread ranks share nothing; its decisions are bounded in number.
class Dispatch {
 public:
  static Dispatch& of_this_thread();
  void run(const c10::OperatorHandle& op, Stack& stack);

  Fallback fallback = Fallback::kReplicate;
  /// Calls by how they were carried out, for traces and tests.
  struct Counts {
    int64_t calls = 0, planned = 0, decomposed = 0, gathered = 0;
  };
  Counts counts;
  /// While not null, the name of every operator that is carried out is added to it.
  std::vector<std::string>* trace = nullptr;
  /// Operators that were gathered because no rule covers them, with how often.
  std::unordered_map<std::string, int64_t> gathered;
  /// Forgets every decision (and lets go of their meshes).
  void clear();

 private:
  struct Entry;
  Entry& entry(const c10::OperatorHandle& op);
  const Decision* find(Entry& entry);
  std::shared_ptr<Decision> decide(const OperatorFacts& facts, const c10::OperatorHandle& op, const Stack& stack);
  void remember(Entry& entry, std::shared_ptr<const Decision> decision);
  Plan plan(const OperatorFacts& facts, const OpCall& call);
  void execute(const OperatorFacts& facts, const Decision& decision, const c10::OperatorHandle& op, Stack& stack);
  void run_functional(const OperatorFacts& facts, Stack& stack);
  bool write_key(const OperatorFacts& facts, const Stack& stack);

  std::unordered_map<const void*, std::unique_ptr<Entry>> entries_;
  std::vector<int64_t> key_;  // scratch
  int64_t decisions_ = 0;
};

/// The plan of a call that no rule covers: its tensors are gathered, what it writes is put back. Throws where that is
/// refused (`fallback`) or would be wrong (random operators).
Plan gather_plan(const OperatorFacts& facts, const OpCall& call, Fallback fallback);

/// Routes the operators that have a kernel for every backend to the fallback. Done at load; called again by
/// init_device_mesh for operators of libraries loaded since.
void claim_operators();

}  // namespace moonhalo
