// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/script_values.h"

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/operators/schema_convert.h"

namespace moonhalo::scripting {

/// A value of a TorchScript program that Lua only passes on.
struct ScriptValue {
  c10::IValue value;
};
template <>
inline constexpr const char* kObjectName<ScriptValue> = "ScriptValue";

namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

bool has_text_keys_alone(lua_State* lua, int index) {
  if (!lua_istable(lua, index) || luaL_getmetafield(lua, index, "__index") != LUA_TNIL) return false;
  bool any = false;
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    any = true;
    if (lua_type(lua, -2) != LUA_TSTRING) {
      lua_pop(lua, 2);
      return false;
    }
  }
  return any;
}

bool takes_dict(const c10::Type& type) {
  const TypeKind kind = type.kind();
  return kind == TypeKind::DictType || kind == TypeKind::AnyType ||
         (kind == TypeKind::OptionalType && takes_dict(*type.containedType(0)));
}

[[noreturn]] void refuse_value(lua_State* lua, int index, const c10::Type& type, const std::string& where) {
  TORCH_CHECK_TYPE(false, where, " must be ", type.annotation_str(), ", got ", describe(lua, index));
}

IValue list_value(lua_State* lua, int index, const TypePtr& element, const std::string& where) {
  c10::impl::GenericList list(element);
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    list.push_back(check_script_value(lua, lua_gettop(lua), element, where + ", element " + std::to_string(i)));
    lua_pop(lua, 1);
  }
  return list;
}

IValue tuple_value(lua_State* lua, int index, const c10::Type& type, const std::string& where) {
  const auto elements = type.containedTypes();
  if (lua_rawlen(lua, index) > elements.size()) refuse_value(lua, index, type, where);
  std::vector<IValue> values;
  for (size_t i = 0; i < elements.size(); ++i) {
    lua_rawgeti(lua, index, static_cast<lua_Integer>(i) + 1);
    values.push_back(
        check_script_value(lua, lua_gettop(lua), elements[i], where + ", element " + std::to_string(i + 1)));
    lua_pop(lua, 1);
  }
  return c10::ivalue::Tuple::create(std::move(values));
}

IValue dict_value(lua_State* lua, int index, const c10::Type& type, const std::string& where) {
  const TypePtr key = type.containedType(0), value = type.containedType(1);
  // In the order of names, since that of a Lua table may differ between ranks.
  std::map<std::string, IValue> texts;
  std::map<int64_t, IValue> numbers;
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    if (key->kind() == TypeKind::StringType && lua_type(lua, -2) == LUA_TSTRING) {
      const std::string name = lua_tostring(lua, -2);
      texts[name] = check_script_value(lua, lua_gettop(lua), value, where + ", entry '" + name + "'");
    } else if (key->kind() == TypeKind::IntType && lua_isinteger(lua, -2)) {
      const int64_t number = lua_tointeger(lua, -2);
      numbers[number] = check_script_value(lua, lua_gettop(lua), value, where + ", entry " + std::to_string(number));
    } else {
      refuse_value(lua, lua_absindex(lua, -2), *key, where + ", a key");
    }
  }
  c10::impl::GenericDict dict(key, value);
  for (const auto& [name, one] : texts) dict.insert(name, one);
  for (const auto& [number, one] : numbers) dict.insert(number, one);
  return dict;
}

IValue any_value(lua_State* lua, int index, const c10::Type& type, const std::string& where) {
  if (const at::Tensor* tensor = to_tensor(lua, index)) return *tensor;
  switch (lua_type(lua, index)) {
    case LUA_TBOOLEAN:
      return static_cast<bool>(lua_toboolean(lua, index));
    case LUA_TNUMBER:
      return lua_isinteger(lua, index) ? IValue(static_cast<int64_t>(lua_tointeger(lua, index)))
                                       : IValue(static_cast<double>(lua_tonumber(lua, index)));
    case LUA_TSTRING:
      return check_string(lua, index);
    default:
      if (is_nil(lua, index)) return IValue();
      refuse_value(lua, index, type, where);
  }
}

}  // namespace

IValue check_script_value(lua_State* lua, int index, const TypePtr& type, const std::string& where) {
  luaL_checkstack(lua, 8, where.c_str());
  if (const auto kept = to_object<ScriptValue>(lua, index)) return kept->value;
  switch (type->kind()) {
    case TypeKind::OptionalType:
      if (is_nil(lua, index)) return IValue();
      return check_script_value(lua, index, type->containedType(0), where);
    case TypeKind::NoneType:
      if (!is_nil(lua, index)) refuse_value(lua, index, *type, where);
      return IValue();
    case TypeKind::TupleType:
      if (!lua_istable(lua, index)) refuse_value(lua, index, *type, where);
      return tuple_value(lua, index, *type, where);
    case TypeKind::DictType:
      if (!lua_istable(lua, index)) refuse_value(lua, index, *type, where);
      return dict_value(lua, index, *type, where);
    case TypeKind::AnyType:
    case TypeKind::UnionType:
      return any_value(lua, index, *type, where);
    default:
      break;
  }
  IValue value;
  if (from_lua(lua, index, c10::Argument("", type), /*numbers_as_tensors=*/false, value)) return value;
  if (type->kind() != TypeKind::ListType || !lua_istable(lua, index)) refuse_value(lua, index, *type, where);
  return list_value(lua, index, type->containedType(0), where);
}

ScriptArguments check_script_arguments(lua_State* lua, int first, const c10::FunctionSchema& schema,
                                       const std::string& where) {
  ScriptArguments given;
  const auto& required = schema.arguments();  // the first is self
  int last = lua_gettop(lua);
  const size_t position = static_cast<size_t>(last - first) + 1;
  const bool by_name = last >= first && has_text_keys_alone(lua, last) &&
                       (position >= required.size() || !takes_dict(*required[position].type()));
  if (by_name) --last;
  TORCH_CHECK_VALUE(last - first + 1 < static_cast<int>(required.size()), where, " takes ", required.size() - 1,
                    " arguments, got ", last - first + 1, "\n  have  ", schema);
  for (int index = first; index <= last; ++index) {
    const c10::Argument& argument = required[static_cast<size_t>(index - first) + 1];
    given.positional.push_back(check_script_value(lua, index, argument.type(), where + ": '" + argument.name() + "'"));
  }
  if (!by_name) return given;
  for (lua_pushnil(lua); lua_next(lua, last + 1); lua_pop(lua, 1)) {
    const std::string name = lua_tostring(lua, -2);
    const auto at = schema.argumentIndexWithName(name);
    TORCH_CHECK_VALUE(at && *at > 0, where, " has no argument '", name, "'\n  have  ", schema);
    given.named[name] = check_script_value(lua, lua_gettop(lua), required[*at].type(), where + ": '" + name + "'");
  }
  return given;
}

IValue check_script_result(lua_State* lua, int first, const TypePtr& type, const std::string& where) {
  const int count = lua_gettop(lua) - first + 1;
  if (count == 1 && to_object<ScriptValue>(lua, first)) return to_object<ScriptValue>(lua, first)->value;
  if (type->kind() == TypeKind::TupleType) {
    const auto elements = type->containedTypes();
    TORCH_CHECK_TYPE(static_cast<size_t>(count) == elements.size(), where, " gives ", count, " values, expected ",
                     elements.size());
    std::vector<IValue> values;
    for (int i = 0; i < count; ++i) values.push_back(check_script_value(lua, first + i, elements[i], where));
    return c10::ivalue::Tuple::create(std::move(values));
  }
  if (count == 0) lua_pushnil(lua);
  return check_script_value(lua, first, type, where + ": the result");
}

/// Replaces the `count` values on top of the stack by a list of them.
static void pack_values(lua_State* lua, int count) {
  const int list = lua_gettop(lua) - count + 1;
  lua_createtable(lua, count, 0);
  lua_insert(lua, list);
  for (int i = count; i >= 1; --i) lua_rawseti(lua, list, i);
}

int push_script_value(lua_State* lua, const IValue& value, bool inside) {
  luaL_checkstack(lua, 8, "too many results");
  const bool named_tuple = value.isTuple() && value.toTupleRef().type()->name().has_value();
  if (inside && (value.isList() || value.isGenericDict() || value.isObject() || named_tuple)) {
    push_object(lua, std::make_shared<ScriptValue>(ScriptValue{value}));
    return 1;
  }
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    luaL_checkstack(lua, static_cast<int>(elements.size()) + 8, "too many results");
    for (const IValue& element : elements) {
      if (!element.isTuple()) {
        push_script_value(lua, element, inside);
      } else if (inside) {
        push_object(lua, std::make_shared<ScriptValue>(ScriptValue{element}));
      } else {
        pack_values(lua, push_script_value(lua, element, inside));
      }
    }
    return static_cast<int>(elements.size());
  }
  if (value.isGenericDict()) {
    lua_newtable(lua);
    for (const auto& entry : value.toGenericDict()) {
      push_value(lua, entry.key(), *c10::AnyType::get());
      const int count = push_script_value(lua, entry.value(), inside);
      if (entry.value().isTuple()) pack_values(lua, count);
      lua_rawset(lua, -3);
    }
    return 1;
  }
  push_value(lua, value, *c10::AnyType::get());
  return 1;
}

namespace {

void open_script_values(lua_State* lua) {
  static const luaL_Reg kNone[] = {{nullptr, nullptr}};
  define_object<ScriptValue>(lua, kNone);
}

const Binding script_values_binding{"script_values", open_script_values};

}  // namespace
}  // namespace moonhalo::scripting
