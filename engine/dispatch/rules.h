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
#include "moonhalo/engine/exchange/halo_source.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

using Stack = torch::jit::Stack;

/// An argument of an operator's schema. Plans look it up by name (OpCall::arg), and run functions capture it
/// (LocalCall). So a reordered schema changes nothing, and names are looked up only once.
struct Arg {
  int index = -1;  ///< position in the schema; -1: not found
  explicit operator bool() const { return index >= 0; }
  bool operator==(const Arg&) const = default;
};

/// One tensor of a call, in the order of the schema; the items of a Tensor[] are consecutive.
struct TensorArgument {
  Arg arg;
  int item = -1;       ///< index in the list, or -1
  SpecPtr spec;        ///< null if undefined; a plain tensor counts as replicated
  bool plain = false;  ///< not a ShardTensor
  at::ScalarType dtype = at::ScalarType::Float;
};

/// The facts of a call that a plan may use: the operator, its non-tensor arguments and the specs of its tensors. It
/// holds no tensor data.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const Stack& stack);

  const c10::OperatorHandle& op;
  const MeshPtr& mesh() const { return mesh_; }
  const std::vector<TensorArgument>& slots() const { return slots_; }
  std::string name() const;  ///< "aten::sum.dim_IntList"
  /// Returns a named argument. Throws if the schema has none of that name (check with has()).
  Arg arg(std::string_view name) const;
  /// Returns the first of these names that the schema has, for operators that name the same argument differently.
  Arg arg(std::initializer_list<std::string_view> names) const;
  /// Like arg, but returns an Arg that is false if the schema has none of the names.
  Arg find(std::initializer_list<std::string_view> names) const;
  bool has(std::string_view argument) const { return static_cast<bool>(find({argument})); }
  /// True if the operator's schema says that it writes to the argument.
  bool writes(Arg arg) const;
  bool writes(std::string_view argument) const { return writes(arg(argument)); }

  /// Returns the spec of a tensor argument (null if undefined or None), or of item `item` of a list.
  SpecPtr spec(Arg arg, int item = -1) const;
  SpecPtr spec(std::string_view argument, int item = -1) const { return spec(arg(argument), item); }
  /// Returns the index into slots(), or -1.
  int slot(Arg arg, int item = -1) const;
  int slot(std::string_view argument, int item = -1) const { return slot(arg(argument), item); }
  /// Returns the facts of a tensor argument. Throws if it is not given.
  const TensorArgument& tensor(Arg arg) const { return slots_.at(slot(arg)); }
  const TensorArgument& tensor(std::string_view argument) const { return tensor(arg(argument)); }

  /// Return non-tensor arguments as passed, with defaults filled in.
  const c10::IValue& value(Arg arg) const { return values_[arg.index]; }
  const c10::IValue& value(std::string_view argument) const { return value(arg(argument)); }
  bool given(std::string_view argument) const { return !value(argument).isNone(); }
  int64_t integer(std::string_view argument) const { return value(argument).toInt(); }
  bool flag(std::string_view argument) const { return value(argument).toBool(); }
  /// Returns an int[] or SymInt[] (all concrete); {} if an optional list is absent.
  std::vector<int64_t> integers(std::string_view argument) const;
  /// Returns a dim argument, wrapped into [0, ndim).
  int64_t dim(std::string_view argument, int64_t ndim) const;
  /// Returns an int[]? of dims, wrapped and sorted; all dims if absent or empty.
  std::vector<int64_t> dims(std::string_view argument, int64_t ndim) const;

  /// Returns the global shapes of the results, lists flattened, nullopt for undefined results. Runs the operator on
  /// meta tensors of the global shapes, and throws what it throws for bad arguments.
  std::vector<std::optional<std::vector<int64_t>>> output_shapes() const;

  /// Returns "aten::add(Tensor [4, 9] on mesh(3: x): Shard(0, {2, 1, 1}), ...)" for error messages.
  std::string describe() const;

 private:
  friend class Dispatch;
  MeshPtr mesh_;
  std::vector<TensorArgument> slots_;
  std::vector<c10::IValue> values_;  // tensors replaced by None
  const Stack& stack_;               // valid only while planning
};

/// Tensors as the caller gave them, before they were moved, for run functions that need more than blocks (LocalCall).
struct GivenTensors {
  std::vector<c10::IValue> arguments = {};  ///< all, of a plan that says asks_for_tensors
  /// While ghosts are filled (host_halos.h), the ShardTensors whose own block the local call is given.
  std::vector<std::pair<Arg, at::Tensor>> not_moved = {};
};

/// The local call, for run functions. It holds the operator's arguments: local tensors, redistributed as planned, and
/// the plan's argument overrides. The run function replaces them by the local results.
class LocalCall {
 public:
  /// The arguments are the last entries of `stack`.
  LocalCall(const c10::OperatorHandle& op, Stack& stack, const GivenTensors* given = nullptr)
      : op(op), stack_(stack), base_(stack.size() - op.schema().arguments().size()), given_(given) {}

  const c10::OperatorHandle& op;
  c10::IValue& value(Arg arg) { return stack_[base_ + arg.index]; }
  /// Returns a tensor argument. Undefined for None and for an argument that was not found (OpCall::find).
  const at::Tensor& tensor(Arg arg);
  /// Returns an argument, or an item of a list, as the caller gave it, before it was moved. Undefined if it is no
  /// tensor, and in calls whose plan does not say asks_for_tensors.
  at::Tensor given(Arg arg, int item = -1) const;
  /// Returns where other ranks' rows of a tensor argument may be found on this rank. What is gathered must have the
  /// rows of that argument's block. Not collective; of the same kind (empty or not) on every rank.
  HaloSource halo_source(Arg arg) const;

  /// Calls the operator itself; its results replace the arguments.
  void run() { op.callBoxed(stack_); }
  /// Returns the results of the operator with other values for some arguments. Does not change this call.
  Stack run_with(std::initializer_list<std::pair<Arg, c10::IValue>> values) const;
  /// Moves out a result of run() or give(). Call give() afterwards.
  at::Tensor result(size_t i = 0) { return std::move(stack_[base_ + i]).toTensor(); }
  /// Replaces the arguments, or the results of run(), by these results.
  template <typename... Results>
  void give(Results... results) {
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(base_), stack_.end());
    (stack_.emplace_back(std::move(results)), ...);
  }
  /// Appends a result, after give().
  void add(at::Tensor result) { stack_.emplace_back(std::move(result)); }
  /// Returns all arguments; after run() or give(), all results.
  std::span<c10::IValue> values() { return std::span(stack_).subspan(base_); }

 private:
  Stack& stack_;
  size_t base_;
  const GivenTensors* given_;
};

/// Executes a local call. It may communicate over the mesh of the plan's specs.
using Run = std::function<void(LocalCall& call)>;

/// Describes how a call is executed: the specs that its tensors are redistributed to, the function that runs on the
/// blocks, and the specs of the results. Plans are cached by operator, specs, dtypes, output-cut policy (output_cut.h)
/// and non-tensor arguments (not for operators tagged pointwise). A plan and its `run` may therefore capture only
/// these, never tensors.
struct Plan {
  std::vector<SpecPtr> inputs;  ///< by slot; null: the local tensor is used as it is
  /// One spec per result, lists flattened. Null: the result is returned unchanged (undefined, or a plain tensor). If
  /// the vector is empty, every tensor result is replicated and its shape is that of the local result.
  std::vector<SpecPtr> outputs;
  std::vector<std::pair<Arg, c10::IValue>> argument_overrides = {};  ///< non-tensor arguments of the local call
  Run run = {};  ///< default: the operator itself on the local tensors
  /// A view operator whose result does not alias its input. Writes to either are copied to the other
  /// (view_tracking.h).
  bool breaks_alias = false;
  /// Per result: its dims from the outermost to the innermost in memory, for results of `run` that are not row-major.
  /// Equal on all ranks. A block of another memory order is copied.
  std::vector<std::vector<int64_t>> memory_order = {};
  bool asks_for_tensors = false;  ///< `run` calls LocalCall::given
  bool gathered = false;          ///< made by the fallback because no rule covers the call
};

/// The operators of a rule: one name or a list of names.
struct OperatorNames : std::vector<std::string_view> {
  OperatorNames(const char* name) : vector{name} {}
  OperatorNames(std::string_view name) : vector{name} {}
  OperatorNames(std::initializer_list<std::string_view> names) : vector(names) {}
};

/// A sharding rule for one or more operators. A rule for aten::erf, which acts on each element alone:
///
///     std::optional<Plan> plan_erf(const OpCall& call) {
///       const SpecPtr blocks = without_partial(call.spec("self"));   // a Partial must be reduced before erf
///       return Plan{.inputs = {blocks}, .outputs = {blocks}};        // the default run: at::erf on each block
///     }
///     const Register erf_rules{{.op = "aten::erf", .plan = plan_erf, .supports = "any sharding"}};
///
/// A call on [4, 9] with Shard(0, {2, 1, 1}) then moves no data, and rank 0 computes a [2, 9] block of the result.
///
/// `op` "aten::sum" covers every overload; "aten::sum.dim_IntList" covers one and takes precedence. `plan` is a pure
/// function and must return the same plan on every rank. It may throw ValueError or NotImplementedError in the have/fix
/// format. If it returns std::nullopt, the fallback handles the call: it gathers the tensors or throws.
struct Rule {
  OperatorNames op;
  std::function<std::optional<Plan>(const OpCall& call)> plan;
  std::string_view source = "PyTorch";  ///< where the semantics are defined
  std::string_view supports = "";       ///< free text for `moonhalo ops`
  Traffic traffic = Traffic::kNone;     ///< traffic of `run`; redistribution of inputs is not included
  const char* file = __builtin_FILE();
};

/// Registers rules. Define static objects in ops/: `const Register rules{{.op = "aten::mm", .plan = plan_mm}, ...};`
struct Register {
  Register(std::initializer_list<Rule> rules);
};
/// Returns the rule that covers the operator, or null. Rules exist until the program ends.
const Rule* find_rule(const c10::OperatorName& name);
/// Returns all operators that rules name, sorted, with their rules.
const std::map<std::string, const Rule*, std::less<>>& all_rules();

}  // namespace moonhalo
