// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

using Stack = torch::jit::Stack;

/// An argument of an operator's schema. Plans find it by name (OpCall::arg) and run functions keep it (LocalCall), so a
/// reordered schema changes nothing, and names are looked up once.
struct Arg {
  int index = -1;  ///< position in the schema; -1: not found
  explicit operator bool() const { return index >= 0; }
  bool operator==(const Arg&) const = default;
};

/// One tensor of a call, in the order of the schema; the items of a Tensor[] follow one another.
struct TensorArgument {
  Arg arg;
  int item = -1;       ///< position in the list, or -1
  SpecPtr spec;        ///< null for an undefined tensor; a plain tensor counts as replicated
  bool plain = false;  ///< not a ShardTensor
  at::ScalarType dtype = at::ScalarType::Float;
};

/// Facts of a call for its plan: the operator, its non-tensor arguments and the specs of its tensors. No tensor data.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const Stack& stack);

  const c10::OperatorHandle& op;
  const MeshPtr& mesh() const { return mesh_; }
  const std::vector<TensorArgument>& slots() const { return slots_; }
  std::string name() const;  ///< "aten::sum.dim_IntList"
  /// A named argument; throws when the schema has none (has() asks).
  Arg arg(std::string_view name) const;
  /// For operators that call it differently: the first of these names that the schema has.
  Arg arg(std::initializer_list<std::string_view> names) const;
  /// The same, and false when the schema has none of them.
  Arg find(std::initializer_list<std::string_view> names) const;
  bool has(std::string_view argument) const { return static_cast<bool>(find({argument})); }
  /// True if the operator writes to an argument, by its schema.
  bool writes(Arg arg) const;
  bool writes(std::string_view argument) const { return writes(arg(argument)); }

  /// Spec of a tensor argument (null: undefined or None); of a list's items.
  SpecPtr spec(Arg arg, int item = -1) const;
  SpecPtr spec(std::string_view argument, int item = -1) const { return spec(arg(argument), item); }
  /// Index into slots(), or -1.
  int slot(Arg arg, int item = -1) const;
  int slot(std::string_view argument, int item = -1) const { return slot(arg(argument), item); }
  /// The facts that are known of a tensor argument that is given.
  const TensorArgument& tensor(Arg arg) const { return slots_.at(slot(arg)); }
  const TensorArgument& tensor(std::string_view argument) const { return tensor(arg(argument)); }

  /// Non-tensor arguments; the value as passed (defaults are already filled in).
  const c10::IValue& value(Arg arg) const { return values_[arg.index]; }
  const c10::IValue& value(std::string_view argument) const { return value(arg(argument)); }
  bool given(std::string_view argument) const { return !value(argument).isNone(); }
  int64_t integer(std::string_view argument) const { return value(argument).toInt(); }
  bool flag(std::string_view argument) const { return value(argument).toBool(); }
  /// int[] or SymInt[] (all concrete); an int? list that is absent gives {}.
  std::vector<int64_t> integers(std::string_view argument) const;
  /// A dim argument, wrapped into [0, ndim).
  int64_t dim(std::string_view argument, int64_t ndim) const;
  /// int[]? dims, wrapped and sorted; all dims when absent or empty.
  std::vector<int64_t> dims(std::string_view argument, int64_t ndim) const;

  /// Global shapes of the results, found by running the operator on meta tensors of the global shapes (lists
  /// flattened; an undefined result gives nullopt). Throws what the operator throws for bad arguments.
  std::vector<std::optional<std::vector<int64_t>>> output_shapes() const;

  /// "aten::add(Tensor [4, 9] on mesh(3: x): Shard(0, {2, 1, 1}), ...)" for messages.
  std::string describe() const;

 private:
  friend class Dispatch;
  MeshPtr mesh_;
  std::vector<TensorArgument> slots_;
  std::vector<c10::IValue> values_;  // tensors replaced by None
  const Stack& stack_;               // valid while planning only
};

/// The local call, for run functions: the operator's arguments as local tensors (redistributed as planned, with the
/// argument overrides of the plan), which it replaces by the local results.
class LocalCall {
 public:
  /// `stack` ends with the arguments.
  LocalCall(const c10::OperatorHandle& op, Stack& stack)
      : op(op), stack_(stack), base_(stack.size() - op.schema().arguments().size()) {}

  const c10::OperatorHandle& op;
  c10::IValue& value(Arg arg) { return stack_[base_ + arg.index]; }
  /// Undefined where None was given, and for an argument that was not found (OpCall::find).
  const at::Tensor& tensor(Arg arg);

  /// The operator itself: its results take the place of the arguments.
  void run() { op.callBoxed(stack_); }
  /// The results of the operator for other values of some arguments; the call stays as it is.
  Stack run_with(std::initializer_list<std::pair<Arg, c10::IValue>> values) const;
  /// Takes out what run() or give() left; give() must follow.
  at::Tensor result(size_t i = 0) { return std::move(stack_[base_ + i]).toTensor(); }
  /// Drops the arguments, or what run() left, and leaves these results.
  template <typename... Results>
  void give(Results... results) {
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(base_), stack_.end());
    (stack_.emplace_back(std::move(results)), ...);
  }
  /// One more result, after give().
  void add(at::Tensor result) { stack_.emplace_back(std::move(result)); }
  /// All arguments; after run() or give(), all results.
  std::span<c10::IValue> values() { return std::span(stack_).subspan(base_); }

 private:
  Stack& stack_;
  size_t base_;
};

/// Carries out a local call. May communicate over the mesh of the plan's specs.
using Run = std::function<void(LocalCall& call)>;

/// Says how a call is carried out: what every tensor must look like first, what is run, and what the results are.
/// Plans are cached by operator, specs, dtypes, the policy of output cuts (output_cut.h) and the non-tensor arguments
/// (for operators tagged pointwise: without them), so a plan and its `run` may capture only those, never tensors.
struct Plan {
  std::vector<SpecPtr> inputs;  ///< by slot; null leaves the local tensor as it is
  /// By result, lists flattened. Null: the result is passed on as it is (undefined, or a plain tensor).
  /// An empty vector: every tensor result is replicated with the shape that comes out.
  std::vector<SpecPtr> outputs;
  std::vector<std::pair<Arg, c10::IValue>> argument_overrides = {};  ///< non-tensor arguments of the local call
  Run run = {};               ///< default: the operator itself on the local tensors
  bool breaks_alias = false;  ///< a view operator whose result does not alias its input (writes to either are carried
                              ///< over: view_tracking.h)
  /// By result: its dims from the outermost to the innermost in memory, where `run` gives blocks that do not lie row by
  /// row. Whether one does is the same on all ranks. A block that lies otherwise than its tensor says is copied.
  std::vector<std::vector<int64_t>> memory_order = {};
  bool asks_for_tensors = false;  ///< `run` asks for the tensors that the call was given (given_tensors.h)
  bool gathered = false;          ///< made by the fallback, because no rule covers the call
};

/// The operators of a rule: one name, or a list of them.
struct OperatorNames : std::vector<std::string_view> {
  OperatorNames(const char* name) : vector{name} {}
  OperatorNames(std::string_view name) : vector{name} {}
  OperatorNames(std::initializer_list<std::string_view> names) : vector(names) {}
};

/// One rule. `op` names operators: "aten::sum" claims every overload, "aten::sum.dim_IntList" just one (stronger).
/// `plan` is pure: facts in, plan out, the same on every rank. It may throw ValueError / NotImplementedError with the
/// house's message. Returning std::nullopt passes the call to the fallback (gather, or refuse).
struct Rule {
  OperatorNames op;
  std::function<std::optional<Plan>(const OpCall& call)> plan;
  std::string_view source = "PyTorch";  ///< where the semantics are defined
  std::string_view supports = "";       ///< in words, for `moonhalo ops`
  Traffic traffic = Traffic::kNone;     ///< what `run` of its plans may move; inputs move as any plan says
  const char* file = __builtin_FILE();
};

/// Static objects of ops/*.cpp: `const Register rules{{.op = "aten::mm", .plan = plan_mm}, ...};`
struct Register {
  Register(std::initializer_list<Rule> rules);
};
/// Null where no rule claims the operator. Rules live as long as the program.
const Rule* find_rule(const c10::OperatorName& name);
/// Every operator that a rule names, sorted, and its rule.
const std::map<std::string, const Rule*, std::less<>>& all_rules();

}  // namespace moonhalo
