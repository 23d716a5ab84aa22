// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/bind/nested_list.h"

#include <ATen/ATen.h>

namespace moonhalo::scripting {

at::Tensor NestedList::read(int index) {
  take(lua_absindex(lua_, index), 0);
  if (has_tensor_) return at::stack(tensors_).reshape(shape_);
  at::Tensor values = kind_ == Kind::kFloat ? at::tensor(floats_, at::kDouble) : at::tensor(integers_, at::kLong);
  if (kind_ == Kind::kFloat) values = values.reshape(shape_);
  if (kind_ == Kind::kBool) values = values.to(at::kBool);
  return values.reshape(shape_);
}

at::ScalarType NestedList::natural_dtype() const {
  if (has_tensor_) return tensors_[0].scalar_type();
  if (kind_ == Kind::kBool) return at::kBool;
  return kind_ == Kind::kInteger ? at::kLong : at::get_default_dtype_as_scalartype();
}

/// A table with names would lose them without a word; one with names alone would be a tensor of no elements.
void NestedList::refuse_names(int index, int64_t size) {
  if (size > 0) {
    push(lua_, size);
  } else {
    lua_pushnil(lua_);
  }
  if (!lua_next(lua_, index)) return;
  const bool is_name = lua_type(lua_, -2) == LUA_TSTRING;
  lua_pop(lua_, 2);
  TORCH_CHECK_TYPE(!is_name, who_, ": a list has names too, got ", describe(lua_, index),
                   "\n  fix   give numbers in lists, as {{1, 2}, {3, 4}}");
}

void NestedList::take(int index, size_t depth) {
  if (!lua_istable(lua_, index)) {
    TORCH_CHECK_VALUE(!shape_known_ || depth == shape_.size(), who_, ": a number stands where a list was expected");
    shape_known_ = true;
    take_number(index);
    return;
  }
  const auto size = static_cast<int64_t>(lua_rawlen(lua_, index));
  luaL_checkstack(lua_, 2, "too many dimensions");
  refuse_names(index, size);
  if (depth == shape_.size()) {
    TORCH_CHECK_VALUE(!shape_known_, who_, ": a list stands where a number was expected (dimension ", depth, ")");
    shape_.push_back(size);
  }
  TORCH_CHECK_VALUE(shape_[depth] == size, who_, ": lists of dimension ", depth, " differ in length: ", shape_[depth],
                    " and ", size, "\n  fix   give every list of a dimension as many elements");
  if (size == 0) {
    shape_known_ = true;
    lua_pushnil(lua_);
    TORCH_CHECK_TYPE(lua_next(lua_, index) == 0, who_, ": a list does not begin at 1\n  have  ", describe(lua_, index),
                     "\n  fix   give lists of numbers");
  }
  for (int64_t i = 1; i <= size; ++i) {
    lua_rawgeti(lua_, index, i);
    take(lua_gettop(lua_), depth + 1);
    lua_pop(lua_, 1);
  }
}

void NestedList::take_number(int index) {
  if (const at::Tensor* tensor = to_tensor(lua_, index)) {
    TORCH_CHECK_VALUE(tensor->numel() == 1, who_, ": an element is a tensor of ", tensor->numel(), " elements",
                      "\n  fix   mh.stack joins tensors");
    tensors_.push_back(tensor->detach().reshape({}));
    has_tensor_ = true;
    return;
  }
  const int type = lua_type(lua_, index);
  TORCH_CHECK_TYPE(type == LUA_TNUMBER || type == LUA_TBOOLEAN, who_, ": elements are numbers or booleans, got ",
                   describe(lua_, index));
  TORCH_CHECK_TYPE(!has_tensor_, who_, ": elements are tensors and numbers mixed");
  const bool is_float = type == LUA_TNUMBER && !lua_isinteger(lua_, index);
  if (is_float && kind_ != Kind::kFloat) {
    floats_.assign(integers_.begin(), integers_.end());
    kind_ = Kind::kFloat;
  }
  if (kind_ == Kind::kNone) kind_ = type == LUA_TBOOLEAN ? Kind::kBool : Kind::kInteger;
  if (kind_ == Kind::kBool && type == LUA_TNUMBER) kind_ = Kind::kInteger;
  const bool truth = type == LUA_TBOOLEAN && lua_toboolean(lua_, index);
  if (kind_ == Kind::kFloat) {
    floats_.push_back(type == LUA_TBOOLEAN ? truth : lua_tonumber(lua_, index));
  } else {
    integers_.push_back(type == LUA_TBOOLEAN ? truth : lua_tointeger(lua_, index));
  }
}

}  // namespace moonhalo::scripting
