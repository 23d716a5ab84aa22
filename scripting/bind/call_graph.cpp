// SPDX-License-Identifier: Apache-2.0
// Lists what a call of a model consists of: mh._call_graph, for policies (lua/policy/graph.lua).
#include <ATen/record_function.h>

#include <map>
#include <unordered_map>

#include "moonhalo/engine/profile/macs.h"
#include "moonhalo/scripting/core/after_calls.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/error_place.h"

namespace moonhalo::scripting {

namespace {

struct Node {
  std::string op;
  std::optional<std::string> module;
  std::vector<at::Tensor> inputs, outputs;  ///< kept, so that one address stays one tensor
  int64_t macs = 0;
};

/// Operators as the modules called them: what an operator calls in turn belongs to it.
struct CallGraph {
  std::vector<Node> nodes;
  int64_t depth = 0;
  int64_t macs = 0;  ///< of plain tensors: of all calls within, those of blocks included
};

thread_local CallGraph* graph = nullptr;

void collect(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  }
}

template <class Values>
std::vector<at::Tensor> tensors_in(const Values& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) collect(value, tensors);
  return tensors;
}

struct Entered : at::ObserverContext {
  bool outermost = false;
};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
  auto entered = std::make_unique<Entered>();
  entered->outermost = graph->depth++ == 0;
  if (entered->outermost) graph->nodes.push_back({call.name(), std::nullopt, tensors_in(call.inputs()), {}, 0});
  const int64_t macs = count_macs(mac_rule(call.name()), call.inputs());
  graph->macs += macs;
  graph->nodes.back().macs += macs;
  return entered;
}

void leave(const at::RecordFunction& call, at::ObserverContext* context) {
  --graph->depth;
  if (static_cast<Entered*>(context)->outermost) graph->nodes.back().outputs = tensors_in(call.outputs());
}

/// Names tensors: parameters by theirs, all by a number that is theirs alone.
class TensorNames {
 public:
  TensorNames(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
    for (size_t i = 0; i < names.size(); ++i) parameters_[tensors.at(i).unsafeGetTensorImpl()] = names[i];
  }

  void push_tensor(lua_State* lua, const at::Tensor& tensor) {
    const auto* key = tensor.unsafeGetTensorImpl();
    const auto [number, added] = numbers_.try_emplace(key, static_cast<int64_t>(numbers_.size()) + 1);
    lua_createtable(lua, 0, 4);
    set_field(lua, "value", number->second);
    set_field(lua, "shape", tensor.sizes().vec());
    set_field(lua, "dtype", tensor.scalar_type());
    const auto named = parameters_.find(key);
    if (named == parameters_.end()) return;
    set_field(lua, "parameter", named->second);
  }

  void push_tensors(lua_State* lua, const char* field, const std::vector<at::Tensor>& tensors) {
    lua_createtable(lua, static_cast<int>(tensors.size()), 0);
    for (size_t i = 0; i < tensors.size(); ++i) {
      push_tensor(lua, tensors[i]);
      lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
    }
    lua_setfield(lua, -2, field);
  }

 private:
  std::unordered_map<const c10::TensorImpl*, std::string> parameters_;
  std::unordered_map<const c10::TensorImpl*, int64_t> numbers_;
};

/// Runs the function that is below `arguments` values, observed.
void observe(lua_State* lua, int arguments, CallGraph& seen) {
  struct Observer {
    CallGraph* before;
    at::CallbackHandle handle;
    explicit Observer(CallGraph* now)
        : before(std::exchange(graph, now)),
          handle(at::addThreadLocalCallback(at::RecordFunctionCallback(enter, leave)
                                                .needsInputs(true)
                                                .needsOutputs(true)
                                                .scopes({at::RecordScope::FUNCTION}))) {}
    ~Observer() {
      at::removeCallback(handle);
      graph = before;
    }
  } observer(&seen);
  size_t named = 0;
  const AfterCalls name_modules([&](lua_State* caller) {
    if (named < seen.nodes.size() && seen.depth == 0) {
      const auto path = module_path(caller);
      for (; named < seen.nodes.size(); ++named) seen.nodes[named].module = path;
    }
  });
  call_traced(lua, arguments, 0);
}

/// _call_graph.record(names, tensors, fn, ...) -> list of {op, module, inputs, outputs, macs}: the operators that
/// fn(...) calls, in order. Tensors are {value =, shape =, dtype =, parameter = their name where they are among
/// `tensors`}; `value` is one number for one tensor. macs: multiplications of matrix products, convolutions and
/// attention.
int record(lua_State* lua) {
  TensorNames names(check_string_list(lua, 1), check_tensor_list(lua, 2));
  CallGraph seen;
  observe(lua, lua_gettop(lua) - 3, seen);
  lua_createtable(lua, static_cast<int>(seen.nodes.size()), 0);
  for (size_t i = 0; i < seen.nodes.size(); ++i) {
    const Node& node = seen.nodes[i];
    lua_createtable(lua, 0, 5);
    set_field(lua, "op", node.op);
    set_field(lua, "module", node.module.value_or(""));
    set_field(lua, "macs", node.macs);
    names.push_tensors(lua, "inputs", node.inputs);
    names.push_tensors(lua, "outputs", node.outputs);
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
  return 1;
}

/// _call_graph.macs(fn, ...) -> the multiplications that this rank makes within, on blocks and plain tensors.
int count_macs(lua_State* lua) {
  CallGraph seen;
  observe(lua, lua_gettop(lua) - 1, seen);
  push(lua, seen.macs);
  return 1;
}

/// _call_graph.macs_so_far() -> those of the call of `macs` that is running; 0 outside.
int macs_so_far(lua_State* lua) {
  push(lua, graph != nullptr ? graph->macs : int64_t{0});
  return 1;
}

const luaL_Reg kCallGraphInternals[] = {
    {"record", guard<record>}, {"macs", guard<count_macs>}, {"macs_so_far", guard<macs_so_far>}, {nullptr, nullptr}};

const Binding call_graph_binding{"call_graph", [](lua_State* lua) {
                                   lua_newtable(lua);
                                   add_functions(lua, kCallGraphInternals);
                                   lua_setfield(lua, -2, "_call_graph");
                                 }};

}  // namespace

}  // namespace moonhalo::scripting
