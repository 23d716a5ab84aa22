// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <lua.hpp>

#include <memory>
#include <type_traits>
#include <utility>

#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

/// The name of a C++ type in Lua: `template <> inline constexpr const char* kObjectName<DeviceMesh>
/// = "DeviceMesh";` in namespace moonhalo::scripting, before the first use of push_object /
/// check_object with that type.
template <class T>
inline constexpr const char* kObjectName = nullptr;
template <>
inline constexpr const char* kObjectName<at::Generator> = "Generator";

namespace detail {
void push_shared(lua_State* lua, const char* type, std::shared_ptr<void> object);
std::shared_ptr<void>* test_shared(lua_State* lua, int index, const char* type);
void define_object(lua_State* lua, const char* type, const luaL_Reg* methods, const luaL_Reg* getters,
                   const luaL_Reg* metamethods);
}  // namespace detail

/// Declares the type once per state. `getters` are attributes (called with the object at 1);
/// unknown names are errors. A metamethod "__index" here is asked, with (object, key), for what is
/// neither a method nor an attribute.
template <class T>
void define_object(lua_State* lua, const luaL_Reg* methods, const luaL_Reg* getters = nullptr,
                   const luaL_Reg* metamethods = nullptr) {
  static_assert(kObjectName<T> != nullptr);
  detail::define_object(lua, kObjectName<T>, methods, getters, metamethods);
}
/// nil when null.
template <class T>
void push_object(lua_State* lua, std::shared_ptr<T> object) {
  static_assert(kObjectName<T> != nullptr);
  using Plain = std::remove_const_t<T>;
  detail::push_shared(lua, kObjectName<T>, std::const_pointer_cast<Plain>(std::move(object)));
}
/// Null when it is another type.
template <class T>
std::shared_ptr<T> to_object(lua_State* lua, int index) {
  static_assert(kObjectName<T> != nullptr);
  std::shared_ptr<void>* object = detail::test_shared(lua, index, kObjectName<T>);
  return object ? std::static_pointer_cast<T>(*object) : nullptr;
}
template <class T>
std::shared_ptr<T> check_object(lua_State* lua, int index) {
  std::shared_ptr<T> object = to_object<T>(lua, index);
  if (!object) argument_error(lua, index, kObjectName<T>);
  return object;
}

}  // namespace moonhalo::scripting
