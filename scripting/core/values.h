// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace moonhalo::scripting {

// check_* throw TypeError/ValueError naming the function and the argument; to_* return nothing when
// it is another type. `index` may be negative. Integers may be given as floats with an integral
// value.

void push(lua_State* lua, const at::Tensor& tensor);  ///< nil when undefined
void push(lua_State* lua, bool value);
void push(lua_State* lua, double value);
template <std::integral Integer>
requires(!std::same_as<Integer, bool>) void push(lua_State* lua, Integer value) {
  lua_pushinteger(lua, static_cast<lua_Integer>(value));
}
void push(lua_State* lua, std::string_view text);
inline void push(lua_State* lua, const char* text) { push(lua, std::string_view(text)); }
inline void push(lua_State* lua, const std::string& text) { push(lua, std::string_view(text)); }
void push(lua_State* lua, const at::Scalar& value);
void push(lua_State* lua, at::ScalarType dtype);       ///< "float32"
void push(lua_State* lua, const c10::Device& device);  ///< "cpu", "cuda:0"
/// A Lua list.
template <class Range>
requires requires(const Range& range) {
  range.begin(), range.end();
} &&(!std::is_convertible_v<const Range&, std::string_view>)void push(lua_State* lua, const Range& values) {
  lua_createtable(lua, static_cast<int>(values.end() - values.begin()), 0);
  lua_Integer position = 0;
  for (const auto& value : values) {
    push(lua, value);
    lua_rawseti(lua, -2, ++position);
  }
}

/// Sets a field of the table on top of the stack.
template <class Value>
void set_field(lua_State* lua, const char* name, const Value& value) {
  push(lua, value);
  lua_setfield(lua, -2, name);
}

const at::Tensor* to_tensor(lua_State* lua,
                            int index);  ///< null when it is not a tensor or a freed one
const at::Tensor& check_tensor(lua_State* lua, int index);
at::Tensor opt_tensor(lua_State* lua, int index);                      ///< undefined for nil or none
std::vector<at::Tensor> check_tensor_list(lua_State* lua, int index);  ///< a list, or one tensor
int64_t check_int(lua_State* lua, int index);
double check_number(lua_State* lua, int index);
bool check_bool(lua_State* lua, int index);
std::string check_string(lua_State* lua, int index);
std::vector<int64_t> check_int_list(lua_State* lua, int index);  ///< a list, or one integer
std::vector<double> check_number_list(lua_State* lua, int index);
std::vector<std::string> check_string_list(lua_State* lua, int index);
at::Scalar check_scalar(lua_State* lua, int index);     ///< integer, float or boolean
at::ScalarType check_dtype(lua_State* lua, int index);  ///< "float32", "float", "bf16" ...
c10::Device check_device(lua_State* lua, int index);
std::optional<int64_t> to_int(lua_State* lua,
                              int index);  ///< integers and floats with an integral value
std::optional<at::ScalarType> parse_dtype(std::string_view name);
std::string dtype_name(at::ScalarType dtype);
bool is_nil(lua_State* lua, int index);  ///< nil, none, or mh.none
/// True for a function or a table/userdata with __call.
bool is_callable(lua_State* lua, int index);
/// "Tensor float32 [2, 3]", "integer 3", "string 'a'", "table {0, 1}": for messages.
std::string describe(lua_State* lua, int index);
/// A table without an element 1 may be one with names, which would be taken for nothing: an error.
void check_empty_list(lua_State* lua, int index, const char* required);
/// A name that a list has beside its elements, {2, 3, dim = 1}, which would be left out without a word; "" for none.
/// The n of table.pack does not count.
std::string name_in_list(lua_State* lua, int index);
/// An error if there is one.
void check_no_names(lua_State* lua, int index, const std::string& required);
/// Throws TypeError "bad argument #2 to 'distribute_tensor': required ..., got ...". Counts self out for methods.
[[noreturn]] void argument_error(lua_State* lua, int index, const std::string& required);
/// `mh.Generator{seed = 1}`, for operators that take a generator of the user's.

/// Every name that `parse_dtype` accepts.
std::vector<std::string> dtype_names();
/// "cpu", "cuda", "cuda:1", "meta"; nothing for other strings.
std::optional<c10::Device> parse_device(const std::string& name);
/// "Tensor float32 [2, 3]".
std::string describe(const at::Tensor& tensor);

}  // namespace moonhalo::scripting
