// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

using Stack = torch::jit::Stack;

/// One tensor of a call, in the order of the schema; the items of a Tensor[] follow one another.
struct TensorArgument {
  int arg = 0;         ///< position in the schema
  int item = -1;       ///< position in the list, or -1
  SpecPtr spec;        ///< null for an undefined tensor; a plain tensor counts as replicated
  bool plain = false;  ///< not a ShardTensor
  at::ScalarType dtype = at::ScalarType::Float;
};

/// What a plan may read of a call: the operator, its non-tensor arguments and the specs of its tensors. No tensor data.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const Stack& stack);

  const c10::OperatorHandle& op;
  const MeshPtr& mesh() const { return mesh_; }
  const std::vector<TensorArgument>& slots() const { return slots_; }
  std::string name() const;  ///< "aten::sum.dim_IntList"
  /// Position of a named argument; throws when the schema has none (has() asks).
  int index(std::string_view argument) const;
  bool has(std::string_view argument) const;

  /// Spec of a tensor argument (null: undefined or None); of a list's items.
  SpecPtr spec(int arg, int item = -1) const;
  SpecPtr spec(std::string_view argument, int item = -1) const { return spec(index(argument), item); }
  /// Index into slots(), or -1.
  int slot(int arg, int item = -1) const;
  int slot(std::string_view argument, int item = -1) const { return slot(index(argument), item); }

  /// Non-tensor arguments; the value as passed (defaults are already filled in).
  const c10::IValue& value(int arg) const { return values_[arg]; }
  const c10::IValue& value(std::string_view argument) const { return values_[index(argument)]; }
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

struct Plan;
/// The local call: `stack` ends with the operator's arguments as local tensors (redistributed as planned, edits
/// applied); leave the local results there instead. May communicate over the mesh of the plan's specs.
using Run = std::function<void(const c10::OperatorHandle& op, Stack& stack)>;

/// How a call is carried out: what every tensor must look like first, what is run, and what the results are.
/// Plans are cached by operator, specs, dtypes, the policy of output cuts (output_cut.h) and the non-tensor arguments
/// (for operators tagged pointwise: without them), so a plan and its `run` may capture only those, never tensors.
struct Plan {
  std::vector<SpecPtr> inputs;  ///< by slot; null leaves the local tensor as it is
  /// By result, lists flattened. Null: the result is passed on as it is (undefined, or a plain tensor).
  /// An empty vector: every tensor result is replicated with the shape that comes out.
  std::vector<SpecPtr> outputs;
  std::vector<std::pair<int, c10::IValue>> edits = {};  ///< non-tensor arguments replaced for the local call
  Run run = {};                                         ///< default: the operator itself on the local tensors
  bool copies_view = false;  ///< a view operator whose result does not alias its input (writes to either are carried
                             ///< over: view_copies.h)
  bool gathered = false;     ///< made by the fallback, because no rule covers the call
};

/// One rule. `op` names an operator: "aten::sum" claims every overload, "aten::sum.dim_IntList" just one (stronger).
/// `plan` is pure: facts in, plan out, the same on every rank. It may throw ValueError / NotImplementedError with the
/// house's message. Returning std::nullopt passes the call to the fallback (gather, or refuse).
struct Rule {
  std::string_view op;
  std::optional<Plan> (*plan)(const OpCall& call) = nullptr;
  std::string_view source = "";    ///< where the semantics are defined
  std::string_view supports = "";  ///< in words, for `moonhalo ops`
  const char* file = __builtin_FILE();
};

/// Static objects of ops/*.cpp: `const Register rules{{.op = "aten::mm", .plan = plan_mm}, ...};`
struct Register {
  Register(std::initializer_list<Rule> rules);
};
const Rule* find_rule(const c10::OperatorName& name);
/// Every rule, sorted by operator.
std::vector<Rule> all_rules();

// For run functions
/// Number of arguments of the schema; the i-th argument on the stack; drop the arguments and push results.
c10::IValue& argument(const c10::OperatorHandle& op, Stack& stack, int index);
template <typename... Results>
void finish(const c10::OperatorHandle& op, Stack& stack, Results&&... results) {
  torch::jit::drop(stack, op.schema().arguments().size());
  (stack.emplace_back(std::forward<Results>(results)), ...);
}

}  // namespace moonhalo
