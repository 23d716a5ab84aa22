// SPDX-License-Identifier: Apache-2.0
// Lua modules as ModuleTrees. scripting/lua/internal/module_tree.lua has the functions on a single module.
#include "moonhalo/scripting/bind/module_tree.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/bind/plan.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<CallHooks> = "CallHooks";
template <>
inline constexpr const char* kObjectName<ForwardWrapper> = "ForwardWrapper";
template <>
inline constexpr const char* kObjectName<Parallelized> = "Parallelized";

namespace {

const char kFunctionsKey = 0, kUserdataKey = 0;

// Userdata of tensors in modules, by tensor, held weakly. Lua compares userdata, so a tensor that several modules share
// must be one userdata.
void push_userdata_table(lua_State* lua) {
  push_registry_table(lua, &kUserdataKey);
  if (lua_getmetatable(lua, -1) != 0) {
    lua_pop(lua, 1);
    return;
  }
  lua_createtable(lua, 0, 1);
  lua_pushliteral(lua, "v");
  lua_setfield(lua, -2, "__mode");
  lua_setmetatable(lua, -2);
}

// Enters the userdata on top.
void note_userdata(lua_State* lua, const at::Tensor& tensor) {
  push_userdata_table(lua);
  lua_pushvalue(lua, -2);
  lua_rawsetp(lua, -2, tensor.unsafeGetTensorImpl());
  lua_pop(lua, 1);
}

void push_shared_tensor(lua_State* lua, const at::Tensor& tensor) {
  push_userdata_table(lua);
  lua_rawgetp(lua, -1, tensor.unsafeGetTensorImpl());
  lua_remove(lua, -2);
  const at::Tensor* known = to_tensor(lua, -1);
  if (known != nullptr && known->is_same(tensor)) return;
  lua_pop(lua, 1);
  push(lua, tensor);
  note_userdata(lua, tensor);
}

class LuaModuleTree : public ModuleTree {
 public:
  LuaModuleTree(lua_State* lua, int index) : module_(lua, index), identity_(lua_topointer(lua, index)) {}
  const Reference& module() const { return module_; }

  const void* identity() const override { return identity_; }

  std::vector<std::string> kinds() const override {
    std::vector<std::string> all;
    ask("kinds", 1, {}, [&](lua_State* lua) { all = check_string_list(lua, -1); });
    return all;
  }

  std::vector<Child> children() const override {
    std::vector<Child> all;
    ask("children", 2, {}, [&](lua_State* lua) {
      for (const std::string& name : check_string_list(lua, -2)) {
        lua_rawgeti(lua, -1, static_cast<lua_Integer>(all.size()) + 1);
        all.push_back({name, std::make_shared<LuaModuleTree>(lua, -1)});
        lua_pop(lua, 1);
      }
    });
    return all;
  }

  std::vector<Tensor> tensors() const override {
    std::vector<Tensor> all;
    ask("tensors", 4, {}, [&](lua_State* lua) {
      const std::vector<std::string> names = check_string_list(lua, -4);
      const int64_t parameters = check_int(lua, -2);
      for (const std::string& name : names) {
        const auto number = static_cast<int64_t>(all.size());
        lua_getfield(lua, -1, name.c_str());
        const bool shared_by_stages = lua_toboolean(lua, -1) != 0;
        lua_pop(lua, 1);
        lua_rawgeti(lua, -3, number + 1);
        const at::Tensor tensor = check_tensor(lua, -1);
        note_userdata(lua, tensor);
        lua_pop(lua, 1);
        all.push_back({name, tensor, number < parameters, shared_by_stages});
      }
    });
    return all;
  }

  void replace_tensor(const std::string& name, const at::Tensor& tensor) override {
    ask("replace_tensor", 0, [&](lua_State* lua) {
      push(lua, name);
      push_shared_tensor(lua, tensor);
      return 2;
    });
  }

  void check_signature(const std::string& name, const SignaturePlan& inputs, const SignaturePlan&) const override {
    if (inputs.by_name.empty()) return;
    std::vector<std::string> names;
    for (const auto& [argument, plan] : inputs.by_name) names.push_back(argument);
    ask("check_arguments", 0, [&](lua_State* lua) {
      push(lua, name);
      push(lua, names);
      return 2;
    });
  }

  std::function<void()> add_call_hooks(CallHooks hooks) override {
    return add("add_call_hooks", std::make_shared<CallHooks>(std::move(hooks)));
  }
  std::function<void()> wrap_forward(ForwardWrapper wrapper) override {
    return add("wrap_forward", std::make_shared<ForwardWrapper>(std::move(wrapper)));
  }

  std::shared_ptr<const Parallelized> parallelized() const override {
    std::shared_ptr<const Parallelized> done;
    ask("parallelized", 1, {}, [&](lua_State* lua) { done = to_object<Parallelized>(lua, -1); });
    return done;
  }
  void set_parallelized(std::shared_ptr<const Parallelized> done) override {
    ask("set_parallelized", 0, [&](lua_State* lua) {
      push_object(lua, std::const_pointer_cast<Parallelized>(done));
      return 1;
    });
  }

 private:
  // Calls a function of module_tree.lua with the module and what `arguments` pushes and counts.
  void ask(const char* function, int results, const std::function<int(lua_State*)>& arguments,
           const std::function<void(lua_State*)>& read = {}) const {
    lua_State* lua = module_.lua();
    luaL_checkstack(lua, 10, function);
    const int top = lua_gettop(lua);
    push_registry_table(lua, &kFunctionsKey);
    lua_getfield(lua, -1, function);
    module_.push();
    const int count = arguments ? arguments(lua) : 0;
    call_traced(lua, count + 1, results);
    if (read) read(lua);
    lua_settop(lua, top);
  }

  template <class T>
  std::function<void()> add(const char* function, std::shared_ptr<T> object) {
    Reference remove;
    const auto push_it = [&](lua_State* lua) {
      push_object(lua, object);
      return 1;
    };
    ask(function, 1, push_it, [&](lua_State* lua) { remove = Reference(lua, -1); });
    return [remove] {
      remove.push();
      call_traced(remove.lua(), 0, 0);
    };
  }

  Reference module_;
  const void* identity_;
};

// Hooks

// The tensors of the list at `index`, undefined where an entry is not a tensor.
std::vector<at::Tensor> tensors_of_list(lua_State* lua, int index, int64_t count) {
  std::vector<at::Tensor> tensors;
  for (int64_t i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    const at::Tensor* tensor = to_tensor(lua, -1);
    tensors.push_back(tensor != nullptr ? *tensor : at::Tensor());
    lua_pop(lua, 1);
  }
  return tensors;
}

/// hooks:before(list, count, named), hooks:after(...): puts what the hook replaces into the two tables.
template <std::function<void(CallTensors&)> CallHooks::*kSide>
int run_module_hook(lua_State* lua) {
  const auto hooks = check_object<CallHooks>(lua, 1);
  if (!(hooks.get()->*kSide)) return 0;
  CallTensors values{tensors_of_list(lua, 2, check_int(lua, 3)), {}};
  lua_pushnil(lua);
  while (lua_next(lua, 4) != 0) {
    values.by_name[check_string(lua, -2)] = check_tensor(lua, -1);
    lua_pop(lua, 1);
  }
  const CallTensors given = values;
  (hooks.get()->*kSide)(values);
  for (size_t i = 0; i < given.by_position.size(); ++i) {
    if (values.by_position[i].is_same(given.by_position[i])) continue;
    push(lua, values.by_position[i]);
    lua_rawseti(lua, 2, static_cast<lua_Integer>(i) + 1);
  }
  for (const auto& [name, tensor] : given.by_name) {
    if (values.by_name.at(name).is_same(tensor)) continue;
    push(lua, values.by_name.at(name));
    lua_setfield(lua, 4, name.c_str());
  }
  return 0;
}

template <std::function<void(CallTensors&)> CallHooks::*kSide>
int has_hook(lua_State* lua) {
  push(lua, static_cast<bool>(check_object<CallHooks>(lua, 1).get()->*kSide));
  return 1;
}

std::vector<at::Tensor> tensors_on_stack(lua_State* lua, int first, int last) {
  std::vector<at::Tensor> tensors;
  for (int i = first; i <= last; ++i) {
    const at::Tensor* tensor = to_tensor(lua, i);
    tensors.push_back(tensor != nullptr ? *tensor : at::Tensor());
  }
  return tensors;
}

/// wrapper:call(forward, self, ...): the results of the wrapper.
int call_wrapper(lua_State* lua) {
  const auto wrapper = check_object<ForwardWrapper>(lua, 1);
  const int last = lua_gettop(lua);
  const CallTensors arguments{tensors_on_stack(lua, 4, last), {}};
  CallTensors results;
  const Forward forward = [&](const CallTensors& given) {
    lua_settop(lua, last);
    luaL_checkstack(lua, last, "forward");
    lua_pushvalue(lua, 2);
    lua_pushvalue(lua, 3);
    for (int i = 4; i <= last; ++i) {
      const at::Tensor& tensor = given.by_position.at(i - 4);
      tensor.is_same(arguments.by_position[i - 4]) ? lua_pushvalue(lua, i) : push(lua, tensor);
    }
    lua_call(lua, last - 2, LUA_MULTRET);
    results = {tensors_on_stack(lua, last + 1, lua_gettop(lua)), {}};
    return results;
  };
  const CallTensors given = (*wrapper)(forward, arguments);
  for (size_t i = 0; i < given.by_position.size(); ++i) {
    if (given.by_position[i].is_same(results.by_position.at(i))) continue;
    push(lua, given.by_position[i]);
    lua_replace(lua, last + 1 + static_cast<int>(i));
  }
  return lua_gettop(lua) - last;
}

// parallelize_module

int parallelized_mesh(lua_State* lua) {
  push_object(lua, check_object<Parallelized>(lua, 1)->mesh);
  return 1;
}
int parallelized_plan(lua_State* lua) {
  push_object(lua, std::make_shared<ParallelPlan>(check_object<Parallelized>(lua, 1)->plan));
  return 1;
}
int parallelized_custom(lua_State* lua) {
  push(lua, check_object<Parallelized>(lua, 1)->custom);
  return 1;
}

/// parallelize_module(module, mesh, plan, {src_data_rank =, unmatched =, is_model_sharded =}, factory, apply_style,
/// styles): apply_style(number, module, mesh) for the custom styles 1 to `styles`. Collective over the mesh.
int parallelize(lua_State* lua) {
  const MeshPtr mesh = check_object<DeviceMesh>(lua, 2);
  const Options given(lua, 4, "parallelize_module", {"src_data_rank", "unmatched", "is_model_sharded"});
  const std::string unmatched = given.get_string("unmatched", "error");
  TORCH_CHECK_VALUE(unmatched == "error" || unmatched == "warn", "parallelize_module: unmatched is '", unmatched, "'",
                    did_you_mean(unmatched, {"error", "warn"}), "\n  have  error, warn");
  ParallelizeOptions options;
  options.src_data_rank = std::nullopt;
  if (given.has("src_data_rank")) options.src_data_rank = given.get_int("src_data_rank", 0);
  options.unmatched = unmatched == "warn" ? Unmatched::kWarn : Unmatched::kError;
  options.is_model_sharded = given.get_bool("is_model_sharded", false);
  if (!is_nil(lua, 5)) options.factory = check_factory_plan(lua, 5, *mesh);
  const int64_t styles = check_int(lua, 7);
  options.custom_styles.resize(styles + 1);  // Lua's numbers begin at 1
  for (int64_t number = 1; number <= styles; ++number) {
    options.custom_styles[number] = [lua, number](const ModuleTreePtr& module, const MeshPtr&) {
      lua_pushvalue(lua, 6);
      push(lua, number);
      push_module(lua, *module);
      lua_pushvalue(lua, 2);
      lua_call(lua, 3, 0);
    };
  }
  parallelize_module(check_module_tree(lua, 1), mesh, *check_object<ParallelPlan>(lua, 3), options);
  return 0;
}

/// distribute_module(module, mesh, partition or nil): hooks are those of Lua. Collective over the mesh.
int distribute_tree(lua_State* lua) {
  DistributeFunctions functions;
  if (!is_nil(lua, 3)) {
    functions.partition = [lua](const std::string& name, const ModuleTreePtr& module, const MeshPtr&) {
      lua_pushvalue(lua, 3);
      push(lua, name);
      push_module(lua, *module);
      lua_pushvalue(lua, 2);
      lua_call(lua, 3, 0);
    };
  }
  distribute_module(check_module_tree(lua, 1), check_object<DeviceMesh>(lua, 2), functions);
  return 0;
}

/// set_functions(functions): those of module_tree.lua.
int set_functions(lua_State* lua) {
  luaL_checktype(lua, 1, LUA_TTABLE);
  push_registry_table(lua, &kFunctionsKey);
  for (lua_pushnil(lua); lua_next(lua, 1) != 0; lua_pop(lua, 1)) {
    lua_pushvalue(lua, -2);
    lua_pushvalue(lua, -2);
    lua_rawset(lua, -5);
  }
  return 0;
}

/// match_modules(op, patterns, names): for each name the number of the pattern that means it, from 1, or 0.
int match_names_of_modules(lua_State* lua) {
  const std::string op = check_string(lua, 1);
  std::vector<int64_t> meant = match_modules(op.c_str(), check_string_list(lua, 2), check_string_list(lua, 3));
  for (int64_t& number : meant) ++number;
  push(lua, meant);
  return 1;
}

const luaL_Reg kTreeFunctions[] = {{"set_functions", guard<set_functions>},
                                   {"parallelize_module", guard<parallelize>},
                                   {"distribute_module", guard<distribute_tree>},
                                   {"match_modules", guard<match_names_of_modules>},
                                   {nullptr, nullptr}};
const luaL_Reg kCallHooksMethods[] = {{"before", guard<run_module_hook<&CallHooks::before>>},
                                      {"after", guard<run_module_hook<&CallHooks::after>>},
                                      {"has_before", guard<has_hook<&CallHooks::before>>},
                                      {"has_after", guard<has_hook<&CallHooks::after>>},
                                      {nullptr, nullptr}};
const luaL_Reg kForwardWrapperMethods[] = {{"call", guard<call_wrapper>}, {nullptr, nullptr}};
const luaL_Reg kParallelizedGetters[] = {{"mesh", guard<parallelized_mesh>},
                                         {"plan", guard<parallelized_plan>},
                                         {"custom", guard<parallelized_custom>},
                                         {nullptr, nullptr}};
const luaL_Reg kParallelizedMethods[] = {{nullptr, nullptr}};

const Binding module_tree_binding{"module_tree", [](lua_State* lua) {
                                    define_object<CallHooks>(lua, kCallHooksMethods);
                                    define_object<ForwardWrapper>(lua, kForwardWrapperMethods);
                                    define_object<Parallelized>(lua, kParallelizedMethods, kParallelizedGetters);
                                    lua_newtable(lua);
                                    add_functions(lua, kTreeFunctions);
                                    lua_setfield(lua, -2, "_trees");
                                  }};

}  // namespace

ModuleTreePtr check_module_tree(lua_State* lua, int index) {
  luaL_checktype(lua, index, LUA_TTABLE);
  return std::make_shared<LuaModuleTree>(lua, index);
}

void push_module(lua_State* lua, const ModuleTree& tree) {
  const Reference& module = dynamic_cast<const LuaModuleTree&>(tree).module();
  module.push();
  if (module.lua() != lua) lua_xmove(module.lua(), lua, 1);
}

}  // namespace moonhalo::scripting
