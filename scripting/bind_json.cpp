// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "scripting/state.h"

namespace moonhalo::scripting {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepest = 100;

void push_json(lua_State* lua, const Json& value) {
  luaL_checkstack(lua, 4, "json");
  switch (value.type()) {
    case Json::value_t::boolean:
      return push(lua, value.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return push(lua, value.get<int64_t>());
    case Json::value_t::number_float:
      return push(lua, value.get<double>());
    case Json::value_t::string:
      return push(lua, value.get_ref<const std::string&>());
    case Json::value_t::array: {
      lua_createtable(lua, static_cast<int>(value.size()), 0);
      lua_Integer position = 0;
      for (const Json& element : value) {
        push_json(lua, element);
        lua_rawseti(lua, -2, ++position);
      }
      return;
    }
    case Json::value_t::object:
      lua_createtable(lua, 0, static_cast<int>(value.size()));
      for (const auto& [key, element] : value.items()) {
        push_json(lua, element);
        lua_setfield(lua, -2, key.c_str());
      }
      return;
    default:
      lua_pushnil(lua);
  }
}

Json to_json(lua_State* lua, int index, int depth) {
  luaL_checkstack(lua, 4, "json");
  index = lua_absindex(lua, index);
  TORCH_CHECK_VALUE(depth < kDeepest, "json: a table is nested deeper than ", kDeepest, " levels, or holds itself");
  if (is_nil(lua, index)) return nullptr;
  switch (lua_type(lua, index)) {
    case LUA_TBOOLEAN:
      return static_cast<bool>(lua_toboolean(lua, index));
    case LUA_TSTRING:
      return check_string(lua, index);
    case LUA_TNUMBER: {
      if (lua_isinteger(lua, index)) return static_cast<int64_t>(lua_tointeger(lua, index));
      const double number = lua_tonumber(lua, index);
      if (std::isnan(number)) return "nan";
      if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
      return number;
    }
    case LUA_TTABLE:
      break;
    default:
      TORCH_CHECK_TYPE(false, "json: cannot write ", describe(lua, index));
  }
  const auto length = static_cast<lua_Integer>(lua_rawlen(lua, index));
  if (length > 0) {
    Json list = Json::array();
    for (lua_Integer i = 1; i <= length; ++i) {
      lua_rawgeti(lua, index, i);
      list.push_back(to_json(lua, -1, depth + 1));
      lua_pop(lua, 1);
    }
    return list;
  }
  std::map<std::string, Json> sorted;
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    TORCH_CHECK_TYPE(lua_type(lua, -2) == LUA_TSTRING, "json: a table has a key that is no string: ",
                     describe(lua, -2), "\n  fix   use a list, or strings as keys");
    sorted.emplace(lua_tostring(lua, -2), to_json(lua, -1, depth + 1));
  }
  Json object = Json::object();
  for (const char* first : {"step", "epoch"}) {
    if (const auto found = sorted.find(first); found != sorted.end()) object[first] = found->second;
  }
  for (auto& [key, element] : sorted) object[key] = std::move(element);
  return object;
}

/// The line and column of a byte of `text`, both from 1.
std::string place(const std::string& text, size_t byte) {
  const std::string before = text.substr(0, byte > 0 ? byte - 1 : 0);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string::npos ? before.size() + 1 : before.size() - newline;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

void decode_text(lua_State* lua, const std::string& text, const std::string& source) {
  Json value;
  try {
    value = Json::parse(text, nullptr, true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    const std::string what = error.what();
    const size_t colon = what.rfind(": ");
    TORCH_CHECK_VALUE(false, "json: ", source, " is not valid at ", place(text, error.byte), ": ",
                      colon == std::string::npos ? what : what.substr(colon + 2));
  }
  push_json(lua, value);
}

/// json.decode(text): objects and arrays become tables, null becomes nil; comments are allowed.
int decode(lua_State* lua) {
  decode_text(lua, check_string(lua, 1), "the text");
  return 1;
}

/// json.load(path)
int load(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file.good(), "json: cannot open '", path, "'");
  std::ostringstream text;
  text << file.rdbuf();
  decode_text(lua, text.str(), "'" + path + "'");
  return 1;
}

/// json.encode(value, [indent]): keys are sorted ("step" and "epoch" come first); NaN and infinities become strings.
int encode(lua_State* lua) {
  const int indent = is_nil(lua, 2) ? -1 : static_cast<int>(check_int(lua, 2));
  push(lua, to_json(lua, 1, 0).dump(indent));
  return 1;
}

const luaL_Reg functions[] = {
    {"decode", guard<decode>},
    {"encode", guard<encode>},
    {"load", guard<load>},
    {nullptr, nullptr},
};

const Binding binding("json", [](lua_State* lua) {
  lua_newtable(lua);
  add_functions(lua, functions);
  lua_setfield(lua, -2, "json");
});

}  // namespace

}  // namespace moonhalo::scripting
