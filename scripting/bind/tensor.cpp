// SPDX-License-Identifier: Apache-2.0
// Attributes and methods of tensors that are not operators.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/argument_counts.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/devices.h"

namespace moonhalo::scripting {

namespace {

const at::Tensor& self(lua_State* lua) { return check_tensor(lua, 1); }

template <class Value>
int give(lua_State* lua, const Value& value) {
  push(lua, value);
  return 1;
}

/// x.shape[0], as in Python, is not a size: Lua's lists count from 1. Other keys that are absent are nil, as in
/// every list.
int shape_index(lua_State* lua) {
  const std::optional<int64_t> key = to_int(lua, 2);
  TORCH_CHECK_INDEX(!key || *key > 0, "x.shape[", *key, "]: x.shape is a Lua list, which counts from 1",
                    "\n  fix   x.shape[", *key < 0 ? "#x.shape" : "1", *key < -1 ? std::to_string(*key + 1) : "",
                    "] or x:size(", *key, ")");
  return 0;
}

int shape_text(lua_State* lua) {
  push(lua, describe(lua, 1));
  return 1;
}

const char kShapeKey = 0;

/// The sizes of a tensor as a list; x:size() gives the same.
int push_sizes(lua_State* lua, at::IntArrayRef sizes) {
  push(lua, sizes);
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kShapeKey) == LUA_TNIL) {
    lua_pop(lua, 1);
    lua_createtable(lua, 0, 2);
    lua_pushcfunction(lua, guard<shape_index>);
    lua_setfield(lua, -2, "__index");
    lua_pushcfunction(lua, guard<shape_text>);
    lua_setfield(lua, -2, "__tostring");
    lua_pushvalue(lua, -1);
    lua_rawsetp(lua, LUA_REGISTRYINDEX, &kShapeKey);
  }
  lua_setmetatable(lua, -2);
  return 1;
}

/// x.shape -> {integer}
///   The sizes of the tensor; of a ShardTensor those of the global tensor. It is a list of Lua: x.shape[1] is the size
///   of dim 0.
///   example
///     mh.zeros{2, 3}.shape    --> {2, 3}
int get_shape(lua_State* lua) { return push_sizes(lua, self(lua).sizes()); }
/// x.dtype -> string
///   The type of the elements.
///   example
///     mh.zeros{2}.dtype    --> float32
int get_dtype(lua_State* lua) { return give(lua, self(lua).scalar_type()); }
/// x.device -> string
///   The device of the elements; of a ShardTensor that of this rank's block.
///   example
///     mh.zeros{2}.device    --> cpu
int get_device(lua_State* lua) { return give(lua, self(lua).device()); }
/// x.grad -> Tensor?
///   The gradient that backward has added up; nil before. It can be set.
///   example
///     local x = mh.ones({2}, {requires_grad = true})
///     local y = (x * 3):sum()
///     y:backward()
///     x.grad:tolist()    --> {3.0, 3.0}
int get_grad(lua_State* lua) { return give(lua, self(lua).grad()); }
/// x.requires_grad -> boolean
///   Whether backward computes a gradient of the tensor. It can be set on leaves.
///   example
///     mh.ones({2}, {requires_grad = true}).requires_grad    --> true
int get_requires_grad(lua_State* lua) { return give(lua, self(lua).requires_grad()); }
/// x.ndim -> integer
///   The number of dims.
///   example
///     mh.zeros{2, 3}.ndim    --> 2
int get_ndim(lua_State* lua) { return give(lua, self(lua).dim()); }
/// x.is_leaf -> boolean
///   Whether no operation that records gradients made the tensor.
///   example
///     local x = mh.ones({2}, {requires_grad = true})
///     x.is_leaf, (x * 2).is_leaf    --> true  false
int get_is_leaf(lua_State* lua) { return give(lua, self(lua).is_leaf()); }
/// x.T -> Tensor
///   A view with the dims in reverse order.
///   example
///     mh.zeros{2, 3}.T.shape    --> {3, 2}
int get_transposed(lua_State* lua) { return give(lua, self(lua).numpy_T()); }
/// x.mT -> Tensor
///   A view with the last two dims swapped.
///   example
///     mh.zeros{4, 2, 3}.mT.shape    --> {4, 3, 2}
int get_matrix_transposed(lua_State* lua) { return give(lua, self(lua).mT()); }
/// x.mH -> Tensor
///   A view with the last two dims swapped and the elements conjugated.
///   example
///     mh.zeros{4, 2, 3}.mH.shape    --> {4, 3, 2}
int get_adjoint(lua_State* lua) { return give(lua, self(lua).mH()); }
/// x.H -> Tensor
///   A view of a matrix with its dims swapped and the elements conjugated.
///   example
///     mh.zeros{2, 3}.H.shape    --> {3, 2}
int get_matrix_adjoint(lua_State* lua) {
  const int64_t dims = self(lua).dim();
  TORCH_CHECK_VALUE(dims == 2 || dims == 0, "H: a matrix is required\n  have  ", describe(self(lua)),
                    "\n  fix   x.mH for batches of matrices");
  return give(lua, self(lua).matrix_H());
}
/// x.real -> Tensor
///   A view of the real parts of a complex tensor; a real tensor itself.
///   example
///     mh.complex(mh.ones{2}, mh.zeros{2}).real:tolist()    --> {1.0, 1.0}
int get_real(lua_State* lua) { return give(lua, at::real(self(lua))); }
/// x.imag -> Tensor
///   A view of the imaginary parts of a complex tensor.
///   example
///     mh.complex(mh.ones{2}, mh.zeros{2}).imag:tolist()    --> {0.0, 0.0}
int get_imag(lua_State* lua) { return give(lua, at::imag(self(lua))); }
/// x.data -> Tensor
///   The same elements without the record of gradients. Writing to it changes x. It can be set.
///   example
///     mh.ones({2}, {requires_grad = true}).data.requires_grad    --> false
int get_data(lua_State* lua) { return give(lua, self(lua).variable_data()); }
/// x.itemsize -> integer
///   Bytes of one element.
///   example
///     mh.zeros{2}.itemsize    --> 4
int get_itemsize(lua_State* lua) { return give(lua, self(lua).element_size()); }
/// x.nbytes -> integer
///   Bytes of all elements; of a ShardTensor those of the global tensor.
///   example
///     mh.zeros{2, 3}.nbytes    --> 24
int get_nbytes(lua_State* lua) { return give(lua, self(lua).numel() * static_cast<int64_t>(self(lua).element_size())); }
int get_version(lua_State* lua) { return give(lua, self(lua)._version()); }
/// x.layout -> string
///   The layout of the elements.
///   example
///     mh.zeros{2}.layout    --> strided
int get_layout(lua_State* lua) {
  std::ostringstream text;
  text << self(lua).layout();
  std::string name = text.str();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return give(lua, name);
}
/// x.is_cpu -> boolean
/// x.is_cuda -> boolean
/// x.is_meta -> boolean
///   Whether the elements are in the memory of the host, on a GPU, or nowhere (device "meta"); of a ShardTensor those
///   of this rank's block.
///   example
///     mh.zeros({2}, {device = "cpu"}).is_cpu, mh.zeros({2}, {device = "meta"}).is_meta    --> true  true
int get_is_cpu(lua_State* lua) { return give(lua, self(lua).device().is_cpu()); }
int get_is_cuda(lua_State* lua) { return give(lua, self(lua).device().is_cuda()); }
int get_is_meta(lua_State* lua) { return give(lua, self(lua).device().is_meta()); }
/// x.is_sparse -> boolean
///   Whether the layout is sparse_coo.
///   example
///     mh.zeros{2}.is_sparse    --> false
int get_is_sparse(lua_State* lua) { return give(lua, self(lua).is_sparse()); }
/// x.grad_fn -> string?
///   The name of the operation that will be differentiated; nil for a leaf.
///   example
///     (mh.ones({2}, {requires_grad = true}) * 2).grad_fn    --> MulBackward0
int get_grad_fn(lua_State* lua) {
  const auto& node = self(lua).grad_fn();
  if (!node) return 0;
  return give(lua, node->name());
}

/// x:item() -> number
///   The only element as a number of Lua.
///   returns     number|boolean   an integer for integer dtypes
///   collective  over x.mesh for a ShardTensor that is not replicated
///   errors      ValueError: the tensor has more than one element, or none
///   example
///     mh.arange(4):sum():item()    --> 6
int item(lua_State* lua) {
  const at::Tensor& tensor = self(lua);
  TORCH_CHECK_VALUE(tensor.numel() == 1, "item: a tensor of ", tensor.numel(), " elements is not one number",
                    "\n  have  ", describe(tensor), "\n  fix   x:tolist(), or select an element first");
  return give(lua, tensor.item());
}

void push_one(lua_State* lua, double number) { lua_pushnumber(lua, number); }
void push_one(lua_State* lua, int64_t number) { lua_pushinteger(lua, number); }

/// The common types without a tensor for every number.
template <typename Stored, typename Number>
void push_row(lua_State* lua, const at::Tensor& row) {
  const auto numbers = row.accessor<Stored, 1>();
  lua_createtable(lua, static_cast<int>(row.size(0)), 0);
  for (int64_t i = 0; i < row.size(0); ++i) {
    push_one(lua, static_cast<Number>(numbers[i]));
    lua_rawseti(lua, -2, i + 1);
  }
}

void push_nested(lua_State* lua, const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    push(lua, tensor.item());
    return;
  }
  luaL_checkstack(lua, 4, "tolist: too many dimensions");
  if (tensor.dim() == 1 && tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg()) {
    if (tensor.scalar_type() == at::kDouble) return push_row<double, double>(lua, tensor);
    if (tensor.scalar_type() == at::kFloat) return push_row<float, double>(lua, tensor);
    if (tensor.scalar_type() == at::kLong) return push_row<int64_t, int64_t>(lua, tensor);
  }
  lua_createtable(lua, static_cast<int>(tensor.size(0)), 0);
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    push_nested(lua, tensor.select(0, i));
    lua_rawseti(lua, -2, i + 1);
  }
}

/// x:tolist() -> table
///   The elements as nested lists, as deep as the tensor has dims.
///   returns     table       of a tensor without dims the number
///   collective  over x.mesh for a ShardTensor
///   example
///     mh.arange(4):reshape{2, 2}:tolist()    --> {{0, 1}, {2, 3}}
int tolist(lua_State* lua) {
  const at::NoGradGuard no_grad;
  const at::Tensor& tensor = self(lua);
  at::Tensor plain = (is_shard_tensor(tensor) ? full_tensor(tensor) : tensor).detach().cpu();
  if (is_fake(plain)) {  // as item() gives them
    const ComputedValues ones;
    plain = at::ones(plain.sizes(), plain.scalar_type());
  }
  push_nested(lua, plain);
  return 1;
}

/// x:numel() -> integer
/// x:nelement() -> integer
///   The number of elements; of a ShardTensor that of the global tensor.
///   returns     integer     the product of x.shape
///   collective  no
///   example
///     mh.zeros{2, 3}:numel()    --> 6
int numel(lua_State* lua) { return give(lua, self(lua).numel()); }
/// x:dim() -> integer
/// x:ndimension() -> integer
///   The number of dims.
///   returns     integer     the same as x.ndim
///   collective  no
///   example
///     mh.zeros{2, 3}:dim()    --> 2
int dim(lua_State* lua) { return give(lua, self(lua).dim()); }

/// The dim at 2, which the tensor has.
int64_t check_dim(lua_State* lua, const char* op) {
  const int64_t dim = check_int(lua, 2), dims = self(lua).dim();
  TORCH_CHECK_INDEX(dim >= -dims && dim < dims, op, ": dim ", dim, " of a tensor of ", dims, " dims\n  have  ",
                    describe(self(lua)));
  return dim;
}

/// x:size(dim = nil) -> {integer}|integer
///   The sizes as a list, or the size of one dim.
///   dim         integer?    from 0; a negative dim counts from the end
///   returns     {integer}|integer   of a ShardTensor those of the global tensor
///   collective  no
///   errors      IndexError: the tensor has no such dim
///   example
///     mh.zeros{2, 3}:size(-1), mh.zeros{2, 3}:size()    --> 3  {2, 3}
int size(lua_State* lua) {
  if (is_nil(lua, 2)) return push_sizes(lua, self(lua).sizes());
  return give(lua, self(lua).size(check_dim(lua, "size")));
}

/// x:stride(dim = nil) -> {integer}|integer
///   How many elements apart in memory neighbours along each dim, or along one dim, are.
///   dim         integer?    from 0; a negative dim counts from the end
///   returns     {integer}|integer   in elements
///   collective  no
///   errors      IndexError: the tensor has no such dim
///   example
///     mh.zeros{2, 3}:stride()    --> {3, 1}
int stride(lua_State* lua) {
  if (is_nil(lua, 2)) return give(lua, self(lua).strides());
  return give(lua, self(lua).stride(check_dim(lua, "stride")));
}

/// x:storage_offset() -> integer
///   Where in its memory the first element of the tensor is.
///   returns     integer     in elements
///   collective  no
///   example
///     mh.arange(6)["2:"]:storage_offset()    --> 2
int storage_offset(lua_State* lua) { return give(lua, self(lua).storage_offset()); }
/// x:element_size() -> integer
///   Bytes of one element.
///   returns     integer     the same as x.itemsize
///   collective  no
///   example
///     mh.zeros({2}, {dtype = "float64"}):element_size()    --> 8
int element_size(lua_State* lua) { return give(lua, self(lua).element_size()); }

/// x:is_contiguous() -> boolean
///   Whether the elements follow each other in row-major order.
///   returns     boolean     of a ShardTensor about the blocks of all ranks
///   collective  no
///   example
///     mh.zeros{2, 3}:is_contiguous(), mh.zeros{2, 3}.T:is_contiguous()    --> true  false
int is_contiguous(lua_State* lua) { return give(lua, self(lua).is_contiguous()); }

at::MemoryFormat memory_format(const std::string& name) {
  if (name == "contiguous_format") return at::MemoryFormat::Contiguous;
  if (name == "preserve_format") return at::MemoryFormat::Preserve;
  if (name == "channels_last") return at::MemoryFormat::ChannelsLast;
  if (name == "channels_last_3d") return at::MemoryFormat::ChannelsLast3d;
  TORCH_CHECK_VALUE(false, "to: unknown memory format '", name, "'",
                    did_you_mean(name, {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}));
}

/// x:to(target, {dtype = nil, device = nil, copy = false, non_blocking = false, memory_format = nil}) -> Tensor
///   The tensor as another dtype, on another device, or both: x:to("float64"), x:to("cuda", "float32"), x:to(other),
///   x:to{dtype = "bfloat16"}.
///   target      string|Tensor?   a dtype, a device (a dtype may follow), or a tensor that has both
///   dtype       string?     the dtype of the result
///   device      string?     the device of the result
///   copy        boolean     also copies where nothing changes
///   non_blocking   boolean   the host does not wait for the copy
///   memory_format   "contiguous_format"|"preserve_format"|"channels_last"|"channels_last_3d"?   the order of the
///     elements
///   returns     Tensor      x itself where nothing changes
///   collective  no
///   errors      ValueError: an unknown dtype, device or format
///   errors      ValueError: blocks of a ShardTensor would leave the kind of device of its mesh
///   example
///     mh.arange(3):to("float64").dtype    --> float64
int to(lua_State* lua) {
  at::TensorOptions options;
  int last = 2;
  if (const at::Tensor* other = to_tensor(lua, 2)) {
    options = options.device(other->device()).dtype(other->scalar_type());
    ++last;
  } else {
    for (; lua_type(lua, last) == LUA_TSTRING; ++last) {
      const std::string name = lua_tostring(lua, last);
      if (const auto dtype = parse_dtype(name)) {
        options = options.dtype(*dtype);
      } else if (const auto device = parse_device(name)) {
        options = options.device(present(*device));
      } else {
        argument_error(lua, last, "a dtype or a device" + did_you_mean(name, dtype_names()));
      }
    }
  }
  if (!is_nil(lua, last) && !lua_istable(lua, last))
    argument_error(lua, last, "a dtype, a device, a tensor or options");
  check_argument_count(lua, last, "to");
  const Options given(lua, last, "to", {"dtype", "device", "copy", "non_blocking", "memory_format"});
  if (const auto dtype = given.get_dtype("dtype")) options = options.dtype(*dtype);
  if (const auto device = given.get_device("device")) options = options.device(*device);
  std::optional<at::MemoryFormat> format;
  if (given.has("memory_format")) format = memory_format(given.get_string("memory_format", ""));
  if (is_shard_tensor(self(lua)) && options.has_device()) check_all_stay(*spec(self(lua)), options.device());
  const at::Tensor result =
      self(lua).to(options, given.get_bool("non_blocking", false), given.get_bool("copy", false), format);
  if (result.is_same(self(lua))) {
    lua_pushvalue(lua, 1);
    return 1;
  }
  return give(lua, result);
}

/// x:float() -> Tensor
/// x:double() -> Tensor
/// x:half() -> Tensor
/// x:bfloat16() -> Tensor
/// x:long() -> Tensor
/// x:int() -> Tensor
/// x:bool() -> Tensor
/// x:byte() -> Tensor
/// x:char() -> Tensor
/// x:short() -> Tensor
/// x:cfloat() -> Tensor
/// x:cdouble() -> Tensor
///   The tensor as float32, float64, float16, bfloat16, int64, int32, bool, uint8, int8, int16, or complex64 or 128.
///   returns     Tensor      x itself if it has that dtype
///   collective  no
///   example
///     mh.arange(3):double().dtype, mh.tensor{0, 2}:bool():tolist()    --> float64  {false, true}
template <at::ScalarType kType>
int convert(lua_State* lua) {
  return give(lua, self(lua).to(kType));
}

/// x:cpu() -> Tensor
///   The tensor in the memory of the host.
///   returns     Tensor      x itself if it is there
///   collective  no
///   example
///     mh.zeros{2}:cpu().device    --> cpu
int to_cpu(lua_State* lua) { return give(lua, self(lua).cpu()); }
/// x:cuda(index = nil) -> Tensor
///   The tensor on a GPU.
///   index       integer?    the number of the GPU, from 0; nil for the current one
///   returns     Tensor      x itself if it is there
///   collective  no
///   errors      ValueError: there is no GPU, or none of that number
///   example
///     (pcall(function() return mh.zeros{2}:cuda(99) end))    --> false
int to_cuda(lua_State* lua) {
  const at::Tensor& tensor = self(lua);
  const int64_t index = is_nil(lua, 2) ? -1 : check_int(lua, 2);
  const c10::Device device = present(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
  if (is_shard_tensor(tensor)) check_all_stay(*spec(tensor), device);
  return give(lua, tensor.to(device));
}

void open_tensor(lua_State* lua) {
  static const luaL_Reg getters[] = {{"shape", guard<get_shape>},
                                     {"dtype", guard<get_dtype>},
                                     {"device", guard<get_device>},
                                     {"grad", guard<get_grad>},
                                     {"requires_grad", guard<get_requires_grad>},
                                     {"ndim", guard<get_ndim>},
                                     {"is_leaf", guard<get_is_leaf>},
                                     {"T", guard<get_transposed>},
                                     {"mT", guard<get_matrix_transposed>},
                                     {"mH", guard<get_adjoint>},
                                     {"H", guard<get_matrix_adjoint>},
                                     {"is_cpu", guard<get_is_cpu>},
                                     {"is_cuda", guard<get_is_cuda>},
                                     {"is_meta", guard<get_is_meta>},
                                     {"is_sparse", guard<get_is_sparse>},
                                     {"real", guard<get_real>},
                                     {"imag", guard<get_imag>},
                                     {"data", guard<get_data>},
                                     {"layout", guard<get_layout>},
                                     {"itemsize", guard<get_itemsize>},
                                     {"nbytes", guard<get_nbytes>},
                                     {"grad_fn", guard<get_grad_fn>},
                                     {"_version", guard<get_version>},
                                     {nullptr, nullptr}};
  add_tensor_getters(lua, getters);
  static const luaL_Reg methods[] = {{"item", guard<item>},
                                     {"tolist", guard<tolist>},
                                     {"numel", guard<numel>},
                                     {"dim", guard<dim>},
                                     {"size", guard<size>},
                                     {"stride", guard<stride>},
                                     {"storage_offset", guard<storage_offset>},
                                     {"element_size", guard<element_size>},
                                     {"is_contiguous", guard<is_contiguous>},
                                     {"to", guard<to>},
                                     {"cpu", guard<to_cpu>},
                                     {"cuda", guard<to_cuda>},
                                     {"float", guard<convert<at::kFloat>>},
                                     {"double", guard<convert<at::kDouble>>},
                                     {"half", guard<convert<at::kHalf>>},
                                     {"bfloat16", guard<convert<at::kBFloat16>>},
                                     {"long", guard<convert<at::kLong>>},
                                     {"int", guard<convert<at::kInt>>},
                                     {"bool", guard<convert<at::kBool>>},
                                     {"byte", guard<convert<at::kByte>>},
                                     {"char", guard<convert<at::kChar>>},
                                     {"short", guard<convert<at::kShort>>},
                                     {"cfloat", guard<convert<at::kComplexFloat>>},
                                     {"cdouble", guard<convert<at::kComplexDouble>>},
                                     {"ndimension", guard<dim>},
                                     {"nelement", guard<numel>},
                                     {nullptr, nullptr}};
  add_tensor_methods(lua, methods);
}

const Binding tensor_binding{"tensor", open_tensor};

}  // namespace

}  // namespace moonhalo::scripting
