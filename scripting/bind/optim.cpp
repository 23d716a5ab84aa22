// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <set>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/training/parallel_optimizer.h"
#include "moonhalo/scripting/bind/optimizer_kinds.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/held_values.h"

namespace moonhalo::scripting {

namespace {

namespace optim = torch::optim;

struct BoundOptimizer {
  const OptimizerKind* kind;
  ParallelOptimizer parallel;

  optim::Optimizer& optimizer() const { return parallel.optimizer(); }
};

struct BoundGroup {
  std::shared_ptr<BoundOptimizer> owner;
  size_t index;
  optim::OptimizerParamGroup& group() const { return owner->optimizer().param_groups()[index]; }
};

}  // namespace

template <>
inline constexpr const char* kObjectName<BoundOptimizer> = "Optimizer";
template <>
inline constexpr const char* kObjectName<BoundGroup> = "ParamGroup";

namespace {

// Groups

bool is_empty_table(lua_State* lua, int index) {
  index = lua_absindex(lua, index);
  lua_pushnil(lua);
  if (!lua_next(lua, index)) return true;
  lua_pop(lua, 2);
  return false;
}

/// SGD({w, lr = 0.1})
void check_no_options(lua_State* lua, int index, const OptimizerKind& kind) {
  const std::string name = name_in_list(lua, index);
  TORCH_CHECK_TYPE(name.empty(), kind.name, ": the list of parameters has the name '", name, "', too\n  fix   ",
                   "give options in a table of their own: ", kind.name, "({w}, {", name, " = ...})");
}

std::vector<at::Tensor> listed_parameters(lua_State* lua, int index, const OptimizerKind& kind) {
  if (const at::Tensor* tensor = to_tensor(lua, index)) return {*tensor};
  std::vector<at::Tensor> parameters;
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  check_no_options(lua, index, kind);
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    const at::Tensor* tensor = to_tensor(lua, -1);
    TORCH_CHECK_TYPE(tensor, kind.name, ": parameter ", i, " is not a tensor but ", describe(lua, -1));
    parameters.push_back(*tensor);
    lua_pop(lua, 1);
  }
  return parameters;
}

std::vector<at::Tensor> check_parameters(lua_State* lua, int index, const OptimizerKind& kind) {
  const bool is_list = lua_istable(lua, index) && (lua_rawlen(lua, index) > 0 || is_empty_table(lua, index));
  TORCH_CHECK_TYPE(is_list || to_tensor(lua, index), kind.name, ": expected a list of parameters, got ",
                   describe(lua, index), "\n  fix   ", kind.name, "(net:parameters(), {lr = 1e-3})");
  const std::vector<at::Tensor> parameters = listed_parameters(lua, index, kind);
  TORCH_CHECK_VALUE(
      !parameters.empty(), kind.name, ": the list of parameters is empty",
      "\n  fix   keep layers in the module (self.fc = nn.Linear(3, 2) in init), and give net:parameters()");
  for (size_t i = 0; i < parameters.size(); ++i) {
    TORCH_CHECK_VALUE(parameters[i].is_leaf(), kind.name, ": parameter ", i + 1,
                      " is the result of an operation, only leaves can be trained\n  have  shape ",
                      parameters[i].sizes(), "\n  fix   give x:detach():requires_grad_(true)");
  }
  return parameters;
}

optim::OptimizerParamGroup check_group(lua_State* lua, int index, const OptimizerKind& kind,
                                       const optim::OptimizerOptions& defaults) {
  std::vector<std::string> known = kind.options;
  known.emplace_back("params");
  const Options options(lua, index, kind.name, known);
  TORCH_CHECK_VALUE(options.has("params"), kind.name, ": a parameter group has no 'params'");
  options.push("params");
  std::vector<at::Tensor> parameters = check_parameters(lua, -1, kind);
  lua_pop(lua, 1);
  return {std::move(parameters), kind.read_options(kind, lua, options, defaults)};
}

void check_once(const std::vector<optim::OptimizerParamGroup>& groups, const OptimizerKind& kind) {
  std::set<const void*> seen;
  for (const optim::OptimizerParamGroup& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      TORCH_CHECK_VALUE(seen.insert(parameter.unsafeGetTensorImpl()).second, kind.name,
                        ": a parameter is given twice\n  have  shape ", parameter.sizes());
    }
  }
}

bool holds_groups(lua_State* lua, int index) {
  lua_rawgeti(lua, index, 1);
  const bool groups = lua_istable(lua, -1);
  lua_pop(lua, 1);
  return groups;
}

/// make_optimizer(kind, parameters or groups, options)
int make_optimizer(lua_State* lua) {
  const OptimizerKind& kind = find_optimizer_kind(check_string(lua, 1));
  const Options given(lua, 3, kind.name, kind.options);
  const std::unique_ptr<optim::OptimizerOptions> defaults = kind.read_options(kind, lua, given, *kind.defaults());
  std::vector<optim::OptimizerParamGroup> groups;
  if (lua_istable(lua, 2) && holds_groups(lua, 2)) {
    check_no_options(lua, 2, kind);
    const auto count = static_cast<lua_Integer>(lua_rawlen(lua, 2));
    for (lua_Integer i = 1; i <= count; ++i) {
      lua_rawgeti(lua, 2, i);
      groups.push_back(check_group(lua, lua_gettop(lua), kind, *defaults));
      lua_pop(lua, 1);
    }
  } else {
    groups.emplace_back(check_parameters(lua, 2, kind), defaults->clone());
  }
  check_once(groups, kind);
  push_object(lua,
              std::make_shared<BoundOptimizer>(BoundOptimizer{&kind, ParallelOptimizer(kind.make(groups, *defaults))}));
  return 1;
}

std::string known_fields(const OptimizerKind& kind) {
  std::string all = "params";
  for (const std::string& name : kind.options) all += ", " + name;
  return all;
}

void check_field(const OptimizerKind& kind, const std::string& key) {
  std::vector<std::string> known = kind.options;
  known.emplace_back("params");
  TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), key) != known.end(), "ParamGroup: ", kind.name,
                    " has no option '", key, "'", did_you_mean(key, known), "\n  have  ", known_fields(kind));
}

int group_get(lua_State* lua) {
  const auto bound = check_object<BoundGroup>(lua, 1);
  const std::string key = check_string(lua, 2);
  const OptimizerKind& kind = *bound->owner->kind;
  check_field(kind, key);
  if (key == "params") {
    push(lua, bound->group().params());
    return 1;
  }
  kind.push_options(lua, bound->group().options());
  lua_getfield(lua, -1, key.c_str());
  return 1;
}

int group_set(lua_State* lua) {
  const auto bound = check_object<BoundGroup>(lua, 1);
  const std::string key = check_string(lua, 2);
  const OptimizerKind& kind = *bound->owner->kind;
  check_field(kind, key);
  TORCH_CHECK_VALUE(key != "params", "ParamGroup: the parameters of a group cannot be replaced");
  lua_settop(lua, 3);
  lua_createtable(lua, 0, 1);
  lua_insert(lua, 3);
  lua_setfield(lua, 3, key.c_str());
  const Options options(lua, 3, kind.name, kind.options);
  bound->group().set_options(kind.read_options(kind, lua, options, bound->group().options()));
  return 0;
}

// Methods

at::Tensor call_closure(lua_State* lua, int index) {
  lua_pushvalue(lua, index);
  call_traced(lua, 0, 1);
  at::Tensor loss;
  if (const at::Tensor* tensor = to_tensor(lua, -1)) {
    loss = *tensor;
  } else if (lua_type(lua, -1) == LUA_TNUMBER) {
    loss = at::scalar_tensor(lua_tonumber(lua, -1), at::kDouble);
  }
  TORCH_CHECK_TYPE(loss.defined(), "step: the closure returned ", describe(lua, -1), ", expected the loss");
  lua_pop(lua, 1);
  return loss;
}

/// opt:sync_shard_grad({bucket_bytes = nil, reduce_dtype = nil}) -> nothing
///   Sums the gradients over the ranks now, several in one message, each to the placements of its parameter. step()
///   does it otherwise.
///   bucket_bytes   integer?   bytes of gradients in one message
///   reduce_dtype   string?   dtype in which they are added; nil for their own
///   returns     nothing
///   collective  over the meshes of the parameters
///   example
///     local net = nn.Linear(2, 1)
///     local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
///     net(mh.ones{1, 2}):sum():backward()
///     opt:sync_shard_grad()
///     net.weight.grad:tolist()    --> {{1.0, 1.0}}
int sync_shard_grad(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  const Options options(lua, 2, "sync_shard_grad", {"bucket_bytes", "reduce_dtype"});
  std::optional<int64_t> bucket_bytes;
  if (options.has("bucket_bytes")) bucket_bytes = options.get_int("bucket_bytes", 0);
  bound->parallel.sync_shard_grad(bucket_bytes, options.get_dtype("reduce_dtype"));
  return 0;
}

/// opt:scale_grads(factor) -> nothing
///   Multiplies all gradients, in place. Call it once they are summed over the ranks (sync_shard_grad, clip_gnorm).
///   factor      number      the same on all ranks
///   returns     nothing
///   collective  no
///   example
///     local net = nn.Linear(2, 1)
///     local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
///     net(mh.ones{1, 2}):sum():backward()
///     opt:scale_grads(0.5)
///     net.bias.grad:item()    --> 0.5
int scale_gradients(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  const double factor = check_number(lua, 2);
  TORCH_CHECK_VALUE(!std::isnan(factor), "scale_grads: the factor is nan, expected a number");
  bound->parallel.scale_grads(factor);
  return 0;
}

/// opt:clip_gnorm(max_norm = nil, norm_type = 2) -> Tensor
///   Sums the gradients over the ranks, computes their joint norm, and scales them so that it is at most max_norm. Call
///   it between backward and step.
///   max_norm    number?     nil only measures
///   norm_type   number      2 for the Euclidean norm, math.huge for the largest element
///   returns     Tensor      the norm before, one element, the same on all ranks
///   collective  over the meshes of the parameters
///   example
///     local w = nn.Parameter(mh.zeros{4})
///     local opt = mh.optim.SGD({w}, {lr = 1})
///     w.grad = mh.ones{4}
///     opt:clip_gnorm(1.0):item(), w.grad:tolist()[1]    --> 2.0  0.49999976158142
int clip_gnorm(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  const double norm_type = is_nil(lua, 3) ? 2 : check_number(lua, 3);
  const auto max_norm = is_nil(lua, 2) ? std::nullopt : std::optional(check_number(lua, 2));
  push(lua, bound->parallel.clip_gnorm(max_norm, norm_type));
  return 1;
}

int add_hook(lua_State* lua, const char* op, void (ParallelOptimizer::*add)(ParallelOptimizer::Hook)) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  TORCH_CHECK_TYPE(is_callable(lua, 2), op, ": the hook is not a function but ", describe(lua, 2));
  // Where Lua has found the optimizer dead, its hooks are gone with it.
  (bound->parallel.*add)([hook = OwnedFunction(lua, 1, 2)](at::Tensor& flat) {
    if (!hook.try_push()) return;
    push(hook.lua(), flat);
    call_traced(hook.lua(), 1, 0);
  });
  return 0;
}

/// opt:register_reducer_pre_hook(hook) -> nothing
///   Calls hook(flat) with each bucket of gradients before it is summed over the ranks. The hook may change flat in
///   place.
///   hook        function    hook(flat), flat a plain tensor [n]
///   returns     nothing
///   collective  no
///   errors      TypeError: the hook is not a function
///   example
///     local opt = mh.optim.SGD(nn.Linear(2, 1):parameters(), {lr = 0.1})
///     opt:register_reducer_pre_hook(function(flat) flat:mul_(0.5) end)
///     opt.name    --> SGD
int register_pre_hook(lua_State* lua) {
  return add_hook(lua, "register_reducer_pre_hook", &ParallelOptimizer::register_reducer_pre_hook);
}
/// opt:register_reducer_post_hook(hook) -> nothing
///   Calls hook(flat) with this rank's part of each bucket of gradients after it was summed over the ranks. The hook
///   may change flat in place.
///   hook        function    hook(flat), flat a plain tensor [n]
///   returns     nothing
///   collective  no
///   errors      TypeError: the hook is not a function
///   example
///     local opt = mh.optim.SGD(nn.Linear(2, 1):parameters(), {lr = 0.1})
///     opt:register_reducer_post_hook(function(flat) flat:mul_(2) end)
///     opt.name    --> SGD
int register_post_hook(lua_State* lua) {
  return add_hook(lua, "register_reducer_post_hook", &ParallelOptimizer::register_reducer_post_hook);
}

/// opt:step(closure = nil) -> Tensor?
///   Sums gradients over the ranks where that was not done, and changes the parameters. LBFGS needs a closure, which it
///   calls several times.
///   closure     function?   zeroes gradients, computes the loss, calls backward and returns the loss
///   returns     Tensor?     the loss of the closure; nothing without one
///   collective  over the meshes of the parameters
///   errors      ValueError: LBFGS without a closure
///   example
///     local w = nn.Parameter(mh.zeros{1})
///     local opt = mh.optim.SGD({w}, {lr = 0.5})
///     local loss = (w * 3):sum()
///     loss:backward()
///     opt:step()
///     w:item()    --> -1.5
int step(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  if (is_nil(lua, 2)) {
    TORCH_CHECK_VALUE(std::string_view(bound->kind->name) != "LBFGS",
                      "step: LBFGS evaluates the loss several times\n  fix   opt:step(function() opt:zero_grad(); "
                      "local loss = ...; loss:backward(); return loss end)");
    bound->parallel.step();
    return 0;
  }
  TORCH_CHECK_TYPE(is_callable(lua, 2), "step: the closure is not a function but ", describe(lua, 2));
  push(lua, bound->parallel.step([lua] { return call_closure(lua, 2); }));
  return 1;
}

/// opt:zero_grad({set_to_none = true}) -> nothing
///   Removes the gradients of the parameters, before the backward of the next step.
///   set_to_none   boolean   false fills them with zeros instead
///   returns     nothing
///   collective  no
///   example
///     local w = nn.Parameter(mh.zeros{1})
///     local opt = mh.optim.SGD({w}, {lr = 0.5})
///     w.grad = mh.ones{1}
///     opt:zero_grad()
///     w.grad    --> nil
int zero_grad(lua_State* lua) {
  const Options options(lua, 2, "zero_grad", {"set_to_none"});
  check_object<BoundOptimizer>(lua, 1)->optimizer().zero_grad(options.get_bool("set_to_none", true));
  return 0;
}

/// opt:add_param_group(group) -> nothing
///   Adds parameters with options of their own.
///   group       table       {params = list, lr = ..., ...}; what is left out is that of the optimizer
///   returns     nothing
///   collective  no, but all ranks must add the same
///   errors      ValueError: no params, an unknown option, or a parameter that is there already
///   example
///     local opt = mh.optim.SGD({nn.Parameter(mh.zeros{1})}, {lr = 0.5})
///     opt:add_param_group{params = {nn.Parameter(mh.zeros{2})}, lr = 0.1}
///     #opt.param_groups, opt.param_groups[2].lr    --> 2  0.1
int add_param_group(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  TORCH_CHECK_VALUE(lua_istable(lua, 2), "add_param_group: expected {params = ..., lr = ...}, got ", describe(lua, 2));
  std::vector<optim::OptimizerParamGroup> groups = bound->optimizer().param_groups();
  groups.push_back(check_group(lua, 2, *bound->kind, bound->optimizer().defaults()));
  check_once(groups, *bound->kind);
  bound->parallel.add_param_group(groups.back());
  return 0;
}

/// opt.param_groups -> {ParamGroup}
///   The groups of parameters. group.params is the list of parameters; options such as group.lr can be read and
///   written.
///   example
///     local opt = mh.optim.Adam({nn.Parameter(mh.zeros{1})}, {lr = 0.5})
///     opt.param_groups[1].lr = 0.25
///     opt.param_groups[1].lr, #opt.param_groups[1].params    --> 0.25  1
int param_groups(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  const size_t count = bound->optimizer().param_groups().size();
  lua_createtable(lua, static_cast<int>(count), 0);
  for (size_t i = 0; i < count; ++i) {
    push_object(lua, std::make_shared<BoundGroup>(BoundGroup{bound, i}));
    lua_pushvalue(lua, 1);  // with its hooks
    lua_setiuservalue(lua, -2, 1);
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
  return 1;
}

/// opt.name -> string
///   The name of the algorithm.
///   example
///     mh.optim.AdamW({nn.Parameter(mh.zeros{1})}).name    --> AdamW
int name(lua_State* lua) {
  push(lua, check_object<BoundOptimizer>(lua, 1)->kind->name);
  return 1;
}

/// opt:state_dict() -> table
///   The state, as mh.checkpoint saves it: give the optimizer as an entry of the checkpoint. The tensors share memory
///   with the optimizer.
///   returns     table       {name, param_groups, state}: options and positions of parameters by group; by parameter,
///     in order over all groups, what the algorithm keeps (exp_avg, step, ...)
///   collective  no
///   example
///     local opt = mh.optim.SGD({nn.Parameter(mh.zeros{1})}, {lr = 0.5})
///     opt:state_dict().param_groups[1].lr    --> 0.5
int state_dict(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  optim::Optimizer& optimizer = bound->optimizer();
  lua_createtable(lua, 0, 3);
  set_field(lua, "name", bound->kind->name);
  lua_newtable(lua);
  lua_newtable(lua);
  lua_Integer position = 0, group_position = 0;
  for (optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<lua_Integer> positions;
    for (const at::Tensor& parameter : group.params()) {
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) {
        lua_newtable(lua);
      } else {
        bound->kind->push_state(lua, *state->second);
      }
      lua_rawseti(lua, -3, ++position);
      positions.push_back(position);
    }
    bound->kind->push_options(lua, group.options());
    set_field(lua, "params", positions);
    lua_rawseti(lua, -2, ++group_position);
  }
  lua_setfield(lua, -3, "param_groups");
  lua_setfield(lua, -2, "state");
  return 1;
}

/// Pushes table[key], which must be a list of `count` tables.
void push_list(lua_State* lua, int table, const char* key, size_t count, const char* of) {
  const bool is_object = luaL_getmetafield(lua, table, "class") != LUA_TNIL;
  if (is_object) lua_pop(lua, 1);
  TORCH_CHECK_VALUE(lua_istable(lua, table) && !is_object, "load_state_dict: expected the table of state_dict(), got ",
                    describe(lua, table));
  lua_getfield(lua, table, key);
  TORCH_CHECK_VALUE(
      lua_istable(lua, -1), "load_state_dict: '", key, "' is missing",
      "\n  fix   give what opt:state_dict() returned, or let mh.checkpoint.load(path, {optimizer = opt}) restore it");
  TORCH_CHECK_VALUE(lua_rawlen(lua, -1) == count, "load_state_dict: '", key, "' is of ", lua_rawlen(lua, -1), " ", of,
                    ", the optimizer has ", count);
}

/// The state that load_state_dict takes over, read from the table at 2.
struct GivenState {
  std::vector<at::Tensor> parameters;
  std::vector<std::unique_ptr<optim::OptimizerOptions>> options;   // by group
  std::vector<std::unique_ptr<optim::OptimizerParamState>> state;  // by parameter
};

GivenState check_state_dict(lua_State* lua) {
  const auto bound = check_object<BoundOptimizer>(lua, 1);
  const OptimizerKind& kind = *bound->kind;
  optim::Optimizer& optimizer = bound->optimizer();
  GivenState given;
  auto& [parameters, options, state] = given;
  std::vector<size_t> group_of;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    group_of.resize(parameters.size(), static_cast<size_t>(&group - optimizer.param_groups().data()));
  }
  push_list(lua, 2, "param_groups", optimizer.param_groups().size(), "parameter groups");
  const int groups = lua_gettop(lua);
  push_list(lua, 2, "state", parameters.size(), "parameters");
  const int states = lua_gettop(lua);
  lua_getfield(lua, 2, "name");
  TORCH_CHECK_VALUE(is_nil(lua, -1) || check_string(lua, -1) == kind.name, "load_state_dict: the state is that of ",
                    describe(lua, -1), ", the optimizer is ", kind.name);

  std::vector<std::string> known = kind.options;
  known.emplace_back("params");
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    lua_rawgeti(lua, groups, static_cast<lua_Integer>(i) + 1);
    options.push_back(
        kind.read_options(kind, lua, Options(lua, lua_gettop(lua), "load_state_dict", known), *kind.defaults()));
    lua_pop(lua, 1);
  }
  const at::NoGradGuard no_grad;
  state.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    lua_rawgeti(lua, states, static_cast<lua_Integer>(i) + 1);
    TORCH_CHECK_VALUE(lua_istable(lua, -1), "load_state_dict: the state of parameter ", i + 1, " is ",
                      describe(lua, -1), ", expected a table");
    lua_pushnil(lua);
    const bool empty = lua_next(lua, -2) == 0;
    if (!empty) {
      lua_pop(lua, 2);
      state[i] =
          kind.read_state(lua, lua_gettop(lua), static_cast<int64_t>(i) + 1, parameters[i], *options[group_of[i]]);
    }
    lua_pop(lua, 1);
  }
  return given;
}

/// opt:load_state_dict(state) -> nothing
///   Continues with the state of another optimizer of the same kind with as many parameters. Tensors may be placed
///   otherwise.
///   state       table       of state_dict()
///   returns     nothing
///   collective  over the meshes of tensors that are placed otherwise
///   errors      ValueError: another kind of optimizer, other numbers of groups or parameters, or other shapes
///   example
///     local a = mh.optim.SGD({nn.Parameter(mh.zeros{1})}, {lr = 0.5})
///     local b = mh.optim.SGD({nn.Parameter(mh.zeros{1})}, {lr = 0.1})
///     b:load_state_dict(a:state_dict())
///     b.param_groups[1].lr    --> 0.5
int load_state_dict(lua_State* lua) {
  auto [parameters, options, state] = check_state_dict(lua);
  optim::Optimizer& optimizer = check_object<BoundOptimizer>(lua, 1)->optimizer();
  for (size_t i = 0; i < options.size(); ++i) optimizer.param_groups()[i].set_options(std::move(options[i]));
  for (size_t i = 0; i < parameters.size(); ++i) {
    void* const key = parameters[i].unsafeGetTensorImpl();
    if (state[i]) {
      optimizer.state()[key] = std::move(state[i]);
    } else {
      optimizer.state().erase(key);
    }
  }
  return 0;
}

/// opt:_check_state_dict(state): the errors of load_state_dict, and nothing else.
int try_state_dict(lua_State* lua) {
  check_state_dict(lua);
  return 0;
}

int is_optimizer(lua_State* lua) {
  push(lua, to_object<BoundOptimizer>(lua, 1) != nullptr);
  return 1;
}

const luaL_Reg kOptimFunctions[] = {
    {"make_optimizer", guard<make_optimizer>},
    {"_is_optimizer", guard<is_optimizer>},
    {nullptr, nullptr},
};

const luaL_Reg methods[] = {
    {"step", guard<step>},
    {"zero_grad", guard<zero_grad>},
    {"sync_shard_grad", guard<sync_shard_grad>},
    {"scale_grads", guard<scale_gradients>},
    {"clip_gnorm", guard<clip_gnorm>},
    {"register_reducer_pre_hook", guard<register_pre_hook>},
    {"register_reducer_post_hook", guard<register_post_hook>},
    {"add_param_group", guard<add_param_group>},
    {"state_dict", guard<state_dict>},
    {"load_state_dict", guard<load_state_dict>},
    {"_check_state_dict", guard<try_state_dict>},
    {nullptr, nullptr},
};
const luaL_Reg getters[] = {
    {"param_groups", guard<param_groups>},
    {"name", guard<name>},
    {nullptr, nullptr},
};
const luaL_Reg no_methods[] = {{nullptr, nullptr}};
const luaL_Reg group_metamethods[] = {
    {"__index", guard<group_get>},
    {"__newindex", guard<group_set>},
    {nullptr, nullptr},
};

const Binding optim_binding("optim", [](lua_State* lua) {
  define_object<BoundOptimizer>(lua, methods, getters);
  define_object<BoundGroup>(lua, no_methods, nullptr, group_metamethods);
  add_functions(lua, kOptimFunctions);
});

}  // namespace

}  // namespace moonhalo::scripting
