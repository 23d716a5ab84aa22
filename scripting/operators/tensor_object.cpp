// SPDX-License-Identifier: Apache-2.0
// The tensor userdata: how tensors live in Lua, and their metatable apart from arithmetic.
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/scripting/bind/training.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/held_values.h"
#include "moonhalo/scripting/core/python_names.h"
#include "moonhalo/scripting/core/stored_tensor.h"
#include "moonhalo/scripting/operators/indexing.h"
#include "moonhalo/scripting/operators/operators.h"
#include "moonhalo/scripting/operators/print_tensor.h"
#include "moonhalo/scripting/operators/tensor_object.h"

namespace moonhalo::scripting {

namespace {

const char kMetatableKey = 0;

/// The user value of a tensor's userdata that holds its StoredTensor; others have no such value.
constexpr int kStoredValue = 2;

/// Lua sees a few bytes per tensor and would collect far too late: after this much tensor memory it is started.
/// Unused memory is new memory for the next tensor, at some 0.3 ms per MiB; a collection takes 0.1 ms per MiB of
/// Lua's own memory.
constexpr int64_t kCollectAtLeast = int64_t{4} << 20, kCollectAtMost = int64_t{64} << 20, kOfLua = 12;

/// Fake tensors take a mapping for each window of memory, of which a process has some 65,000.
constexpr int64_t kFakeWindow = int64_t{32} << 20, kCollectFakes = 8192 * kFakeWindow;

// In powers of two, so that what Lua has not collected yet rarely changes it: equal steps then have equal peaks.
int64_t collect_after(lua_State* lua) {
  const int64_t set = state_data(lua)->lua_kilobytes, kilobytes = set > 0 ? set : lua_gc(lua, LUA_GCCOUNT);
  const auto of_lua = int64_t{std::bit_floor(static_cast<uint32_t>(kilobytes))} << 10;
  return std::clamp(kOfLua * of_lua, kCollectAtLeast, kCollectAtMost);
}

void count_memory(lua_State* lua, const at::Tensor& tensor) {
  const ShardTensorImpl* shard = shard_impl(tensor);
  const at::Tensor& local = shard ? shard->local() : tensor;
  const int64_t bytes = local.numel() * static_cast<int64_t>(local.element_size());
  StateData& state = *state_data(lua);
  int64_t& unswept = state.unswept_bytes;
  unswept += state.collects_rarely ? std::max(bytes, kFakeWindow) : bytes;
  if (unswept < (state.collects_rarely ? kCollectFakes : kCollectAtLeast)) return;
  if ((!state.collects_rarely && unswept < collect_after(lua)) || !lua_gc(lua, LUA_GCISRUNNING)) return;
  unswept = 0;
  lua_gc(lua, LUA_GCCOLLECT);
}

at::Tensor& self(lua_State* lua) {
  check_tensor(lua, 1);
  return *static_cast<at::Tensor*>(lua_touserdata(lua, 1));
}

int collect_tensor(lua_State* lua) {
  if (keep_for_autograd(lua)) return 0;
  static_cast<at::Tensor*>(lua_touserdata(lua, 1))->reset();
  return 0;
}

std::vector<std::string> tensor_names(lua_State* lua) {
  std::vector<std::string> names = operator_names();
  for (void (*table)(lua_State*) : {push_tensor_methods, push_tensor_getters}) {
    table(lua);
    for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) {
      if (lua_type(lua, -2) == LUA_TSTRING) names.emplace_back(lua_tostring(lua, -2));
    }
    lua_pop(lua, 1);
  }
  return names;
}

/// Methods that are operators are looked up once and kept in the table of methods.
int missing_method(lua_State* lua) {
  if (lua_type(lua, 2) != LUA_TSTRING || !push_operator(lua, lua_tostring(lua, 2), true)) return 0;
  lua_pushvalue(lua, 2);
  lua_pushvalue(lua, -2);
  lua_rawset(lua, 1);
  return 1;
}

/// A remedy where the function that asks is a method, and its self a tensor: net.forward(x) for net(x).
std::string tensor_as_self(lua_State* lua) {
  lua_Debug frame;
  if (!lua_getstack(lua, 1, &frame)) return "";
  const char* name = lua_getlocal(lua, &frame, 1);
  if (!name) return "";
  const bool is_self = std::string_view(name) == "self" && lua_rawequal(lua, 1, -1);
  lua_pop(lua, 1);
  return is_self ? "\n  fix   self is a tensor here: call the module, net(x), or write a colon, not a dot, before the "
                   "method's name"
                 : "";
}

/// Upvalues: getters, methods.
int tensor_index(lua_State* lua) {
  if (lua_type(lua, 2) == LUA_TSTRING) {
    lua_pushvalue(lua, 2);
    if (lua_rawget(lua, lua_upvalueindex(1)) != LUA_TNIL) {
      lua_pushvalue(lua, 1);
      lua_call(lua, 1, 1);
      return 1;
    }
    lua_pushvalue(lua, 2);
    if (lua_rawget(lua, lua_upvalueindex(2)) != LUA_TNIL) return 1;
    const std::string name = lua_tostring(lua, 2);
    if (!looks_like_slices(name)) {
      lua_pushvalue(lua, 2);
      if (lua_gettable(lua, lua_upvalueindex(2)) != LUA_TNIL) return 1;
      TORCH_CHECK_VALUE(false, "Tensor: no attribute, method or operator '", name, "'",
                        did_you_mean(name, tensor_names(lua)), python_name_hint(name), tensor_as_self(lua));
    }
  }
  push(lua, get_index(self(lua), read_index(lua, 2)));
  return 1;
}

void set_attribute(lua_State* lua, const std::string& name) {
  at::Tensor& tensor = self(lua);
  if (name == "grad") {
    tensor.mutable_grad() = opt_tensor(lua, 3);
  } else if (name == "requires_grad") {
    tensor.requires_grad_(check_bool(lua, 3));
    forget_trained_values(tensor);
  } else if (name == "data") {
    tensor.set_data(check_tensor(lua, 3));
  } else {
    TORCH_CHECK_VALUE(false, "Tensor: attribute '", name, "' cannot be set\n  fix   grad, requires_grad and data can; ",
                      "elements by x[\"0:2\"] = value");
  }
}

int tensor_new_index(lua_State* lua) {
  if (lua_type(lua, 2) == LUA_TSTRING && !looks_like_slices(lua_tostring(lua, 2))) {
    set_attribute(lua, lua_tostring(lua, 2));
    return 0;
  }
  const std::vector<IndexPart> parts = read_index(lua, 2);
  if (const at::Tensor* value = to_tensor(lua, 3)) {
    set_index(self(lua), parts, *value);
  } else {
    set_index(self(lua), parts, check_scalar(lua, 3));
  }
  return 0;
}

int tensor_length(lua_State* lua) {
  const at::Tensor& tensor = self(lua);
  TORCH_CHECK_TYPE(tensor.dim() > 0, "#x: a tensor of 0 dimensions has no length");
  push(lua, tensor.size(0));
  return 1;
}

int tensor_tostring(lua_State* lua) {
  const at::Tensor* tensor = to_tensor(lua, 1);
  push(lua, tensor ? tensor_text(*tensor) : std::string("tensor(freed)"));
  return 1;
}

/// Lua makes one boolean of the result. A tensor is equal to itself; of two the elements may be meant.
int tensor_equal(lua_State* lua) {
  const at::Tensor* left = to_tensor(lua, 1);
  const at::Tensor* right = to_tensor(lua, 2);
  const bool both = left && right;
  TORCH_CHECK_TYPE(!both || left->is_same(*right), "Tensor: == and ~= of two tensors give one boolean in Lua\n  have  ",
                   describe(*left), " and ", describe(*right),
                   "\n  fix   x:eq(y) and x:ne(y) compare elements, x:equal(y) all of them; x:is_same(y) is true for ",
                   "two names of one tensor");
  push(lua, both);
  return 1;
}

/// x:is_same(other) -> boolean
///   Whether both are one tensor, not two with the same elements.
///   other       Tensor      the tensor to compare with
///   returns     boolean     true for two names of one tensor
///   collective  no
///   example
///     local x = mh.ones{2}
///     x:is_same(x), x:is_same(x:clone())    --> true  false
int tensor_is_same(lua_State* lua) {
  push(lua, check_tensor(lua, 1).is_same(check_tensor(lua, 2)));
  return 1;
}

/// Upvalue: Lua's table.unpack, to which a tensor would look like a list that begins at its second row.
int unpack_list(lua_State* lua) {
  TORCH_CHECK_TYPE(
      !to_tensor(lua, 1), "table.unpack: expected a list, got ", describe(lua, 1),
      "\n  fix   mh.grad and other functions return their tensors one by one: local a, b = mh.grad(y, {u, v}); ",
      "x:unbind() is the list of a tensor's rows");
  return lua_tocfunction(lua, lua_upvalueindex(1))(lua);
}

void replace_unpack(lua_State* lua) {
  if (lua_getglobal(lua, "table") == LUA_TTABLE) {
    lua_getfield(lua, -1, "unpack");
    const lua_CFunction known = lua_tocfunction(lua, -1);
    if (known != nullptr && known != guard<unpack_list>) {  // a host may open a state twice
      lua_pushcclosure(lua, guard<unpack_list>, 1);
      lua_setfield(lua, -2, "unpack");
    } else {
      lua_pop(lua, 1);
    }
  }
  lua_pop(lua, 1);
}

int tensor_less(lua_State*) {
  TORCH_CHECK_TYPE(false, "Tensor: <, <=, > and >= give one boolean in Lua",
                   "\n  fix   compare elements by x:lt(y), x:le(y), x:gt(y), x:ge(y)");
}

int tensor_concat(lua_State*) {
  TORCH_CHECK_TYPE(false, "..: a tensor is not a string",
                   "\n  fix   \"loss \" .. x:item() for its one number, tostring(x) for all of it");
}

/// Stateless iterator: (tensor, previous index) -> index, row. Counts from 0 like every index.
int next_row(lua_State* lua) {
  const at::Tensor& tensor = self(lua);
  const int64_t row = check_int(lua, 2) + 1;
  if (row >= tensor.size(0)) return 0;
  push(lua, row);
  push(lua, tensor.select(0, row));
  return 2;
}

/// x:iter() -> function
///   Goes through the rows: for i, row in x:iter() do ... end. pairs(x) does the same.
///   returns     function    an iterator of (index from 0, view of the row)
///   collective  as x:select(0, i), which it calls
///   errors      TypeError: the tensor has no dims
///   example
///     for i, row in mh.arange(3):iter() do print(i, row:item()) end    --> 0  0 | 1  1 | 2  2
int tensor_rows(lua_State* lua) {
  TORCH_CHECK_TYPE(self(lua).dim() > 0, "iter: a tensor of 0 dimensions has no rows");
  lua_pushcfunction(lua, guard<next_row>);
  lua_pushvalue(lua, 1);
  push(lua, -1);
  return 3;
}

/// x:free() -> nothing
///   Gives up the tensor now, instead of when Lua collects it: its memory is free once no other tensor uses it. The
///   block of `local x <close> = ...` does the same at its end.
///   returns     nothing
///   collective  no
///   errors      any later use of x is an error
///   example
///     local x = mh.ones{2}
///     x:free()
///     tostring(x)    --> tensor(freed)
int tensor_free(lua_State* lua) {
  at::Tensor* tensor = test_tensor(lua, 1);
  if (tensor == nullptr) argument_error(lua, 1, "a tensor");
  if (to_stored(lua, 1)) {  // what was never read needs no memory, and is not read any more
    lua_pushnil(lua);
    lua_setiuservalue(lua, 1, kStoredValue);
  }
  if (!tensor->defined()) return 0;
  forget_handle(lua, 1);
  tensor->reset();
  return 0;
}

void open_tensor_object(lua_State* lua) {
  static const luaL_Reg none[] = {{nullptr, nullptr}};
  define_object<StoredTensor>(lua, none);
  push_registry_table(lua, &kMetatableKey);
  add_functions(lua, tensor_arithmetic());
  static const luaL_Reg metamethods[] = {{"__newindex", guard<tensor_new_index>},
                                         {"__len", guard<tensor_length>},
                                         {"__tostring", guard<tensor_tostring>},
                                         {"__eq", guard<tensor_equal>},
                                         {"__lt", guard<tensor_less>},
                                         {"__le", guard<tensor_less>},
                                         {"__concat", guard<tensor_concat>},
                                         {"__pairs", guard<tensor_rows>},
                                         {"__gc", collect_tensor},
                                         {"__close", guard<tensor_free>},
                                         {nullptr, nullptr}};
  add_functions(lua, metamethods);
  set_field(lua, "__name", "Tensor");
  push_tensor_getters(lua);
  push_tensor_methods(lua);
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, guard<missing_method>);
  lua_setfield(lua, -2, "__index");
  lua_setmetatable(lua, -2);
  lua_pushcclosure(lua, guard<tensor_index>, 2);
  lua_setfield(lua, -2, "__index");
  lua_pop(lua, 1);

  static const luaL_Reg methods[] = {{"free", guard<tensor_free>},
                                     {"iter", guard<tensor_rows>},
                                     {"is_same", guard<tensor_is_same>},
                                     {nullptr, nullptr}};
  replace_unpack(lua);
  add_tensor_methods(lua, methods);
  push_tensor_methods(lua);
  lua_setfield(lua, -2, "Tensor");
}

const Binding kBinding{"tensor_object", open_tensor_object};

/// Reads a tensor that is still in its file. Memory is counted only: a collection here would come amid a call.
void read_stored(lua_State* lua, int index, at::Tensor& tensor) {
  const std::shared_ptr<StoredTensor> stored = to_stored(lua, index);
  if (!stored) return;
  tensor = stored->read();
  state_data(lua)->unswept_bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
  index = lua_absindex(lua, index);
  lua_pushnil(lua);
  lua_setiuservalue(lua, index, kStoredValue);
}

}  // namespace

at::Tensor* test_tensor(lua_State* lua, int index) {
  void* memory = lua_touserdata(lua, index);
  if (!memory || !lua_getmetatable(lua, index)) return nullptr;
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kMetatableKey);
  const bool is_tensor = lua_rawequal(lua, -1, -2);
  lua_pop(lua, 2);
  return is_tensor ? static_cast<at::Tensor*>(memory) : nullptr;
}

std::shared_ptr<StoredTensor> to_stored(lua_State* lua, int index) {
  const at::Tensor* tensor = test_tensor(lua, index);
  if (!tensor || tensor->defined()) return nullptr;
  lua_getiuservalue(lua, index, kStoredValue);
  std::shared_ptr<StoredTensor> stored = to_object<StoredTensor>(lua, -1);
  lua_pop(lua, 1);
  return stored;
}

void push(lua_State* lua, std::shared_ptr<StoredTensor> stored) {
  luaL_checkstack(lua, 6, "tensor");
  new (lua_newuserdatauv(lua, sizeof(at::Tensor), kStoredValue)) at::Tensor();
  push_registry_table(lua, &kMetatableKey);
  lua_setmetatable(lua, -2);
  push_object(lua, std::move(stored));
  lua_setiuservalue(lua, -2, kStoredValue);
}

const at::Tensor* to_tensor(lua_State* lua, int index) {
  at::Tensor* tensor = test_tensor(lua, index);
  if (tensor && !tensor->defined()) read_stored(lua, index, *tensor);
  return tensor && tensor->defined() ? tensor : nullptr;
}

void push(lua_State* lua, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    lua_pushnil(lua);
    return;
  }
  luaL_checkstack(lua, 4, "tensor");
  if (ShardTensorImpl* impl = shard_impl(tensor)) impl->live_until_collected();
  new (lua_newuserdatauv(lua, sizeof(at::Tensor), 1)) at::Tensor(tensor);
  push_registry_table(lua, &kMetatableKey);
  lua_setmetatable(lua, -2);
  count_memory(lua, tensor);
}

}  // namespace moonhalo::scripting
