// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/argument_counts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <unordered_map>

#include "moonhalo/scripting/core/lua_sources.h"
#include "moonhalo/scripting/core/reference.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {
namespace {

struct KnownCalls {
  std::unordered_map<std::string_view, KnownCall> by_name;
  std::set<std::string> prefixes;
};

/// Functions that take arguments in two forms, so they count themselves.
constexpr std::string_view kCountThemselves[] = {"Tensor:redistribute", "Tensor:to"};

const KnownCalls& known_calls() {
  static const KnownCalls all = [] {
    KnownCalls read;
    for (const ReferenceEntry& entry : reference()) {
      for (size_t i = 0; i < entry.names.size(); ++i) {
        const std::string_view name = entry.names[i];
        if (entry.most[i] < 0 || std::ranges::count(kCountThemselves, name) > 0) continue;
        const int self = name.find(':') != std::string_view::npos ? 1 : 0;
        read.by_name.emplace(name, KnownCall{name, entry.calls[i], entry.most[i] + self, entry.in_lua});
        for (size_t at = name.find('.'); at != std::string_view::npos; at = name.find('.', at + 1))
          read.prefixes.emplace(name.substr(0, at + 1));
      }
    }
    return read;
  }();
  return all;
}

}  // namespace

const KnownCall* find_call(std::string_view name) {
  const auto& by_name = known_calls().by_name;
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : &found->second;
}

bool is_call_prefix(const std::string& prefix) { return known_calls().prefixes.contains(prefix); }

bool has_surplus(lua_State* lua, int most) {
  while (lua_gettop(lua) > most && lua_isnil(lua, -1)) lua_pop(lua, 1);
  return lua_gettop(lua) > most;
}

std::string surplus_text(const std::string& name, int count, int taken, std::string_view call,
                         const std::string& first) {
  std::ostringstream text;
  text << name << ": " << count << (count == 1 ? " argument, " : " arguments, ");
  if (taken == 0) {
    text << "none is taken";
  } else {
    text << "at most " << taken << (taken == 1 ? " is taken" : " are taken");
  }
  if (!call.empty()) text << "\n  have  " << call;
  text << "\n  fix   leave out " << first;
  if (taken > 0) text << ", or put parentheses around a call that returns several results: f((g(x)))";
  return text.str();
}

void refuse_surplus(lua_State* lua, int most, const std::string& name, bool method, std::string_view call) {
  const int self = method ? 1 : 0, count = lua_gettop(lua) - self, taken = std::max(most - self, 0);
  int first = most + 1;  // of those that say something
  while (lua_isnil(lua, first)) ++first;
  TORCH_CHECK_TYPE(false, surplus_text(name, count, taken, call, describe(lua, first)));
}

void check_argument_count(lua_State* lua, int most, const std::string& name) {
  if (has_surplus(lua, most)) refuse_surplus(lua, most, name, true, "");
}

void push_parameter_count(lua_State* lua, int index) {
  lua_pushvalue(lua, index);
  if (lua_iscfunction(lua, -1)) {
    lua_pop(lua, 1);
    lua_pushinteger(lua, -1);
    return;
  }
  lua_Debug facts;
  lua_getinfo(lua, ">u", &facts);
  lua_pushinteger(lua, facts.isvararg ? -1 : facts.nparams);
}

bool module_takes(lua_State* lua, int arguments) {
  if (lua_iscfunction(lua, -1) || !lua_isfunction(lua, -1)) return true;
  lua_pushvalue(lua, -1);
  lua_Debug facts;
  lua_getinfo(lua, ">Su", &facts);
  while (arguments >= facts.nparams && lua_isnil(lua, arguments + 1)) --arguments;
  return facts.isvararg || arguments < facts.nparams || !is_embedded_chunk(facts.source);
}

void refuse_of_module(lua_State* lua, const std::string& name) {
  lua_Debug facts;
  lua_getinfo(lua, ">u", &facts);
  refuse_surplus(lua, facts.nparams, name, true, "");
}

}  // namespace moonhalo::scripting
