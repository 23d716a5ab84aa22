// SPDX-License-Identifier: Apache-2.0
// mh.tensor from Lua tables, the constants, and small functions of the module that are not operators.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>

#include <mutex>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/scripting/bind/nested_list.h"
#include "moonhalo/scripting/core/argument_counts.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// mh.tensor(values, {dtype = nil, device = nil, requires_grad = false}) -> Tensor
///   A new tensor with a copy of the values.
///   values      number|boolean|table|Tensor   nested lists give the dims
///   dtype       string?     nil: int64 for integers, bool for booleans, else the default dtype; of a tensor its own
///   device      string?     nil for the device of the run
///   requires_grad   boolean   whether backward computes its gradient
///   returns     Tensor      plain, the same on all ranks if the values are
///   collective  no
///   errors      ValueError: lists of different lengths
///   example
///     mh.tensor({{1, 2}, {3, 4}}).shape, mh.tensor(2.5).dtype    --> {2, 2}  float32
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

/// mh.is_tensor(value) -> boolean
///   Whether a value is a tensor, plain or distributed.
///   value       any         what is asked about
///   returns     boolean     false for a tensor that was freed
///   collective  no
///   example
///     mh.is_tensor(mh.ones{1}), mh.is_tensor{1}    --> true  false
int is_tensor(lua_State* lua) {
  push(lua, to_tensor(lua, 1) != nullptr);
  return 1;
}

/// mh.Generator({seed = 67280421310721, device = "cpu"}) -> Generator
///   A stream of random numbers of its own, for operators with the option `generator`.
///   seed        integer     where the stream starts
///   device      string      the device of the tensors that are drawn
///   returns     Generator   independent of mh.default_generator()
///   collective  no
///   example
///     local a = mh.rand({2}, {generator = mh.Generator{seed = 1}})
///     a:equal(mh.rand({2}, {generator = mh.Generator{seed = 1}}))    --> true
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

/// generator:manual_seed(seed) -> Generator
///   Restarts the stream.
///   seed        integer     where it starts
///   returns     Generator   itself
///   collective  no
///   example
///     local generator = mh.Generator{seed = 1}
///     local a = mh.rand({2}, {generator = generator})
///     a:equal(mh.rand({2}, {generator = generator:manual_seed(1)}))    --> true
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

/// generator:get_state() -> Tensor
///   Where the stream is.
///   returns     Tensor      uint8 [n], plain
///   collective  no
///   example
///     mh.Generator():get_state().dtype    --> uint8
int generator_get_state(lua_State* lua) {
  push(lua, generator_state(*check_object<at::Generator>(lua, 1)));
  return 1;
}

/// generator:set_state(state) -> Generator
///   Goes back to where the stream was.
///   state       Tensor      uint8 [n], of get_state()
///   returns     Generator   itself
///   collective  no
///   errors      TypeError: another kind of tensor
///   example
///     local generator = mh.Generator()
///     local before = generator:get_state()
///     local a = mh.rand({2}, {generator = generator})
///     a:equal(mh.rand({2}, {generator = generator:set_state(before)}))    --> true
int generator_set_state(lua_State* lua) {
  restore_generator(*check_object<at::Generator>(lua, 1), check_tensor(lua, 2), "set_state");
  lua_settop(lua, 1);
  return 1;
}

/// generator:state_dict() -> table
///   The state as mh.checkpoint saves it: give the generator as an entry of the checkpoint.
///   returns     table       {state}, a tensor uint8 [n]
///   collective  no
///   example
///     mh.Generator():state_dict().state.dtype    --> uint8
int generator_state_dict(lua_State* lua) {
  lua_createtable(lua, 0, 1);
  set_field(lua, "state", generator_state(*check_object<at::Generator>(lua, 1)));
  return 1;
}

/// generator:load_state_dict(state) -> nothing
///   Goes back to where the stream was.
///   state       table       of state_dict()
///   returns     nothing
///   collective  no
///   errors      ValueError: the state is missing
///   example
///     local one, other = mh.Generator{seed = 1}, mh.Generator{seed = 2}
///     other:load_state_dict(one:state_dict())
///     mh.rand({2}, {generator = one}):equal(mh.rand({2}, {generator = other}))    --> true
int generator_load_state_dict(lua_State* lua) {
  const auto generator = check_object<at::Generator>(lua, 1);
  const Options saved(lua, 2, "Generator:load_state_dict", {"state"});
  const at::Tensor state = saved.get_tensor("state");
  TORCH_CHECK_VALUE(state.defined(), "Generator:load_state_dict: the state is missing",
                    "\n  fix   give what state_dict returned");
  restore_generator(*generator, state, "load_state_dict");
  return 0;
}

/// mh.default_generator() -> Generator
///   The stream that random operators of this rank draw from, which mh.manual_seed starts.
///   returns     Generator   of this rank
///   collective  no
///   example
///     mh.default_generator():get_state():equal(mh.get_rng_state())    --> true
int rank_generator(lua_State* lua) {
  push_object(lua, std::make_shared<at::Generator>(default_generator()));
  return 1;
}

/// mh.get_rng_state() -> Tensor
///   Where the random numbers of this rank are.
///   returns     Tensor      uint8 [n], plain
///   collective  no
///   example
///     mh.get_rng_state().dtype    --> uint8
int get_rng_state(lua_State* lua) {
  push(lua, generator_state(default_generator()));
  return 1;
}

/// mh.set_rng_state(state) -> nothing
///   Goes back to where the random numbers of this rank were.
///   state       Tensor      uint8 [n], of mh.get_rng_state()
///   returns     nothing
///   collective  no, but all ranks must do it
///   errors      TypeError: another kind of tensor
///   example
///     local before = mh.get_rng_state()
///     local a = mh.rand{2}
///     mh.set_rng_state(before)
///     a:equal(mh.rand{2})    --> true
int set_rng_state(lua_State* lua) {
  at::Generator generator = default_generator();
  restore_generator(generator, check_tensor(lua, 1), "set_rng_state");
  return 0;
}

/// mh.fail(message) -> nothing
///   Raises an error at the line of the script that called the function that calls mh.fail.
///   message     string      what, where and the remedy
///   returns     nothing
///   collective  no
///   errors      ValueError: always
///   example
///     select(2, pcall(mh.fail, "no such field")):match("no such field")    --> no such field
int fail(lua_State* lua) { TORCH_CHECK_VALUE(false, check_string(lua, 1)); }

/// mh._describe(value): a value in a message: "Tensor float32 [2, 3]", "'text'", "Linear". It has no addresses, so all
/// ranks say the same.
int describe_value(lua_State* lua) {
  push(lua, describe(lua, 1));
  return 1;
}

/// mh._surplus_text(name, count, taken, call, value): argument_counts.h; `value` is the first that is too many.
int push_surplus_text(lua_State* lua) {
  push(lua, surplus_text(check_string(lua, 1), static_cast<int>(check_int(lua, 2)), static_cast<int>(check_int(lua, 3)),
                         check_string(lua, 4), describe(lua, 5)));
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

/// mh.get_default_dtype() -> string
///   The dtype of new floating-point tensors.
///   returns     string      "float32" at the start
///   collective  no
///   example
///     mh.get_default_dtype()    --> float32
int get_default_dtype(lua_State* lua) {
  push(lua, at::get_default_dtype_as_scalartype());
  return 1;
}
/// mh.set_default_dtype(dtype) -> nothing
///   Sets the dtype of new floating-point tensors, parameters among them. It holds for the whole process.
///   dtype       string      a floating-point dtype
///   returns     nothing
///   collective  no, but all ranks must choose the same
///   errors      ValueError: an unknown dtype, or one that is not floating-point
///   example
///     mh.set_default_dtype("float64")
///     mh.zeros{2}.dtype    --> float64
int set_default_dtype(lua_State* lua) {
  const at::ScalarType dtype = check_dtype(lua, 1);
  TORCH_CHECK_VALUE(at::isFloatingType(dtype), "set_default_dtype: ", dtype_name(dtype),
                    " is not a floating-point dtype\n  fix   \"float32\" or \"float64\"; pass other dtypes to the call "
                    "that makes the tensor: {dtype = \"",
                    dtype_name(dtype), "\"}");
  at::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
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
                                       {"_surplus_text", guard<push_surplus_text>},
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
