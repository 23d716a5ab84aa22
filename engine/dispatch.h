// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/redistribute.h"
#include "engine/rules.h"
#include "engine/shard_tensor.h"

namespace moonhalo {

/// What is known of an operator from its schema and tags, once per thread.
struct OperatorFacts {
  explicit OperatorFacts(const c10::OperatorHandle& op);

  const Rule* rule = nullptr;
  bool pointwise = false;
  bool random = false;
  bool view = false;              ///< a result aliases an argument that is not written
  bool composite_implicit = false;
  bool decomposes = false;        ///< a composite kernel that only calls other operators (foreach, fused)
  size_t arguments = 0;
  std::vector<bool> written;      ///< per argument
  std::vector<int> returns_argument;  ///< per result: the written argument it is, or -1
};

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
  bool write_key(const OperatorFacts& facts, const Stack& stack);

  std::unordered_map<const void*, std::unique_ptr<Entry>> entries_;
  std::vector<int64_t> key_;  // scratch
  int64_t decisions_ = 0;
};

/// Routes the operators that have a kernel for every backend to the fallback. Done at load; called again by
/// init_device_mesh for operators of libraries loaded since.
void claim_operators();

}  // namespace moonhalo
