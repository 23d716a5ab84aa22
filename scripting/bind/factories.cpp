// SPDX-License-Identifier: Apache-2.0
// mh.tensor from Lua tables, the constants, and small functions of the module that are no
// operators.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>

#include <mutex>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/scripting/bind/nested_list.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.tensor(number, nested list or tensor, {dtype =, device =, requires_grad =}); always a copy.
int tensor(lua_State* lua) {
  const Options options(lua, 2, "tensor", {"dtype", "device", "requires_grad"});
  at::Tensor values;
  at::ScalarType dtype;
  if (const at::Tensor* source = to_tensor(lua, 1)) {
    values = source->detach().clone();
    dtype = source->scalar_type();
  } else {
    NestedList list(lua);
    values = list.read(1);
    dtype = lua_istable(lua, 1) && values.numel() == 0 ? at::get_default_dtype_as_scalartype() : list.natural_dtype();
  }
  values =
      values.to(options.get_device("device").value_or(context(lua).device), options.get_dtype("dtype").value_or(dtype));
  values.set_requires_grad(options.get_bool("requires_grad", false));
  push(lua, values);
  return 1;
}

int is_tensor(lua_State* lua) {
  push(lua, to_tensor(lua, 1) != nullptr);
  return 1;
}

/// mh.Generator{seed =, device =}: a random stream of the caller's, for operators that take
/// `generator`.
int make_generator(lua_State* lua) {
  const Options options(lua, 1, "Generator", {"seed", "device"});
  const c10::Device device = options.get_device("device").value_or(c10::Device(c10::kCPU));
  const auto seed = static_cast<uint64_t>(options.get_int("seed", static_cast<int64_t>(c10::default_rng_seed_val)));
  auto generator = std::make_shared<at::Generator>(
      device.is_cpu() ? at::detail::createCPUGenerator(seed) : at::globalContext().defaultGenerator(device).clone());
  generator->set_current_seed(seed);
  push_object(lua, generator);
  return 1;
}

int generator_seed(lua_State* lua) {
  check_object<at::Generator>(lua, 1)->set_current_seed(static_cast<uint64_t>(check_int(lua, 2)));
  lua_settop(lua, 1);
  return 1;
}

at::Tensor generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void restore_generator(at::Generator& generator, const at::Tensor& state, const char* op) {
  TORCH_CHECK_TYPE(state.scalar_type() == at::kByte && state.dim() == 1, op, ": the state is ", describe(state),
                   "\n  fix   give what get_state() or mh.get_rng_state() returned, uint8 [n]");
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state.cpu().contiguous());
}

int generator_get_state(lua_State* lua) {
  push(lua, generator_state(*check_object<at::Generator>(lua, 1)));
  return 1;
}

int generator_set_state(lua_State* lua) {
  restore_generator(*check_object<at::Generator>(lua, 1), check_tensor(lua, 2), "set_state");
  lua_settop(lua, 1);
  return 1;
}

/// The same functions as modules and optimizers have, so that mh.checkpoint saves and restores a generator.
int generator_state_dict(lua_State* lua) {
  lua_createtable(lua, 0, 1);
  set_field(lua, "state", generator_state(*check_object<at::Generator>(lua, 1)));
  return 1;
}

int generator_load_state_dict(lua_State* lua) {
  const Options saved(lua, 2, "Generator:load_state_dict", {"state"});
  const at::Tensor state = saved.get_tensor("state");
  TORCH_CHECK_VALUE(state.defined(), "Generator:load_state_dict: the state is missing",
                    "\n  fix   give what state_dict returned");
  restore_generator(*check_object<at::Generator>(lua, 1), state, "load_state_dict");
  return 0;
}

/// mh.default_generator(): the one that random operators of this rank draw from.
int rank_generator(lua_State* lua) {
  push_object(lua, std::make_shared<at::Generator>(default_generator()));
  return 1;
}

/// mh.get_rng_state() and mh.set_rng_state(state): of mh.default_generator().
int get_rng_state(lua_State* lua) {
  push(lua, generator_state(default_generator()));
  return 1;
}

int set_rng_state(lua_State* lua) {
  at::Generator generator = default_generator();
  restore_generator(generator, check_tensor(lua, 1), "set_rng_state");
  return 0;
}

/// mh.fail(message): an error at the script's line, for Lua code that is part of Moonhalo.
int fail(lua_State* lua) { TORCH_CHECK_VALUE(false, check_string(lua, 1)); }

/// mh._describe(value): a value in a message: "Tensor float32 [2, 3]", "'text'", "Linear". It has no addresses, so all
/// ranks say the same.
int describe_value(lua_State* lua) {
  push(lua, describe(lua, 1));
  return 1;
}

/// mh._check_place(op, {dtype = ..., device = ...}): an error that names `op` unless these are a dtype and a device, or
/// nil.
int check_place(lua_State* lua) {
  const Options options(lua, 2, check_string(lua, 1), {"dtype", "device"});
  options.get_dtype("dtype");
  options.get_device("device");
  return 0;
}

int get_default_dtype(lua_State* lua) {
  push(lua, at::get_default_dtype_as_scalartype());
  return 1;
}
int set_default_dtype(lua_State* lua) {
  at::set_default_dtype(c10::scalarTypeToTypeMeta(check_dtype(lua, 1)));
  return 0;
}

/// dtypes, layouts and memory formats are their names, so that mh.float32 and "float32" are one
/// thing.
void add_constants(lua_State* lua) {
  for (const std::string& name : dtype_names()) {
    set_field(lua, name.c_str(), dtype_name(*parse_dtype(name)));
  }
  for (const char* name :
       {"strided", "sparse_coo", "contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}) {
    set_field(lua, name, name);
  }
  lua_pushlightuserdata(lua, nullptr);
  lua_setfield(lua, -2, "none");
  for (const auto& [name, value] : {std::pair{"pi", M_PI}, {"e", M_E}, {"inf", INFINITY}, {"nan", NAN}}) {
    set_field(lua, name, value);
  }
}

void open_factories(lua_State* lua) {
  static const luaL_Reg generator_methods[] = {{"manual_seed", guard<generator_seed>},
                                               {"get_state", guard<generator_get_state>},
                                               {"set_state", guard<generator_set_state>},
                                               {"state_dict", guard<generator_state_dict>},
                                               {"load_state_dict", guard<generator_load_state_dict>},
                                               {nullptr, nullptr}};
  define_object<at::Generator>(lua, generator_methods);
  static const luaL_Reg functions[] = {{"tensor", guard<tensor>},
                                       {"is_tensor", guard<is_tensor>},
                                       {"Generator", guard<make_generator>},
                                       {"default_generator", guard<rank_generator>},
                                       {"get_rng_state", guard<get_rng_state>},
                                       {"set_rng_state", guard<set_rng_state>},
                                       {"fail", guard<fail>},
                                       {"_describe", guard<describe_value>},
                                       {"_check_place", guard<check_place>},
                                       {"get_default_dtype", guard<get_default_dtype>},
                                       {"set_default_dtype", guard<set_default_dtype>},
                                       {nullptr, nullptr}};
  add_constants(lua);
  add_functions(lua, functions);
}

const Binding factories_binding{"factories", open_factories};

}  // namespace

}  // namespace moonhalo::scripting
