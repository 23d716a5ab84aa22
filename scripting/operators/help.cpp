// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/help.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/reference.h"
#include "moonhalo/scripting/operators/describe_operator.h"
#include "moonhalo/scripting/operators/operators.h"

namespace moonhalo::scripting {

namespace {

constexpr size_t kMostFound = 30;

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

/// True for "Conv2d" and "nn.Conv2d" of "mh.nn.Conv2d".
bool ends_in_name(std::string_view name, std::string_view required) {
  if (!name.ends_with(required)) return false;
  const size_t before = name.size() - required.size();
  return before == 0 || name[before - 1] == '.' || name[before - 1] == ':';
}

/// The signatures begin as scripts call an object: "x:redistribute(", "mesh.ndim ->".
bool begins_a_line(std::string_view text, const std::string& required) {
  for (size_t at = text.find(required); at != std::string_view::npos; at = text.find(required, at + 1)) {
    const size_t end = at + required.size();
    const bool starts = at == 0 || text[at - 1] == '\n';
    if (starts && end < text.size() && (text[end] == '(' || text[end] == ' ' || text[end] == '{')) return true;
  }
  return false;
}

std::string entries_of(const std::function<bool(const ReferenceEntry&)>& fits) {
  std::string found;
  for (const ReferenceEntry& entry : reference()) {
    if (fits(entry)) found += (found.empty() ? "" : "\n") + std::string(entry.text);
  }
  return found;
}

bool has_name(const ReferenceEntry& entry, const std::function<bool(std::string_view)>& fits) {
  return std::any_of(entry.names.begin(), entry.names.end(), fits);
}

/// The first sentence of the description.
std::string summary(const ReferenceEntry& entry) {
  std::string sentence;
  std::istringstream lines{std::string(entry.text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ")) continue;
    if (line.starts_with("    ")) {
      if (sentence.empty()) continue;  // of a signature
      break;
    }
    const std::string part = line.substr(2);
    const size_t end = part.find(". ");
    sentence += (sentence.empty() ? "" : " ") + part.substr(0, end == std::string::npos ? end : end + 1);
    if (end != std::string::npos || part.ends_with('.')) break;
  }
  return sentence;
}

/// "mh.nn.Conv2d" -> "mh.nn", "Tensor:item" -> "Tensor".
std::string_view owner_of(std::string_view name) { return name.substr(0, name.find_last_of(".:")); }

std::string list_of(const std::vector<std::pair<std::string_view, const ReferenceEntry*>>& rows) {
  size_t width = 0;
  for (const auto& [name, entry] : rows) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, entry] : rows)
    text += std::string(name) + std::string(width + 2 - name.size(), ' ') + summary(*entry) + "\n";
  return text;
}

/// All names of a table or a class.
std::string members_of(const std::string& owner) {
  std::vector<std::pair<std::string_view, const ReferenceEntry*>> rows;
  for (const ReferenceEntry& entry : reference()) {
    for (const std::string_view name : entry.names) {
      if (owner_of(name) == owner || owner_of(name) == "mh." + owner) rows.emplace_back(name, &entry);
    }
  }
  std::sort(rows.begin(), rows.end());
  return list_of(rows);
}

std::string operator_help(const std::string& name) {
  const std::string text = describe_operator(name);
  if (text.empty()) return "";
  return text + "  An operator of LibTorch: mh." + name + "(...), or x:" + name +
         "(...) with the tensor x as its first argument.\n"
         "  What it computes: https://docs.pytorch.org/docs/stable/search.html?q=" +
         name + "\n";
}

std::vector<std::string> known_names() {
  std::vector<std::string> names = operator_names();
  for (const ReferenceEntry& entry : reference()) {
    for (const std::string_view name : entry.names) {
      names.emplace_back(name);
      names.emplace_back(name.substr(owner_of(name).size() + 1));
    }
  }
  return names;
}

/// The public operators of LibTorch whose names have all words.
std::string operators_with(const std::vector<std::string>& words) {
  std::vector<std::string> found;
  for (const std::string& name : operator_names()) {
    const auto has = [&](const std::string& word) { return name.find(word) != std::string::npos; };
    if (!name.starts_with('_') && std::all_of(words.begin(), words.end(), has)) found.push_back(name);
  }
  std::string text;
  for (size_t i = 0; i < std::min(found.size(), kMostFound); ++i) text += "  " + found[i] + "\n";
  if (found.size() > kMostFound) text += "  ... " + std::to_string(found.size() - kMostFound) + " more; add a word\n";
  return text.empty() ? "" : "Operators of LibTorch, by name (moonhalo help NAME, moonhalo ops NAME):\n" + text;
}

/// Pushes the function or class that a name of the reference stands for; nil where its table is not loaded.
void push_named(lua_State* lua, std::string_view name) {
  const std::string owner(owner_of(name)), last(name.substr(owner.size() + 1));
  if (owner == "Tensor") {
    push_tensor_methods(lua);
  } else if (!owner.starts_with("mh")) {
    luaL_getmetatable(lua, ("moonhalo." + owner).c_str());
    if (!lua_istable(lua, -1)) return;
    lua_getfield(lua, -1, "__index");
    lua_remove(lua, -2);
    if (lua_getupvalue(lua, -1, 1) == nullptr) lua_pushnil(lua);
    lua_remove(lua, -2);
  } else {
    push_module(lua);
    std::istringstream parts(owner.size() > 2 ? owner.substr(3) : "");
    for (std::string part; std::getline(parts, part, '.') && lua_istable(lua, -1);) {
      push(lua, part);
      lua_rawget(lua, -2);
      lua_remove(lua, -2);
    }
  }
  if (!lua_istable(lua, -1)) return;
  push(lua, last);
  lua_rawget(lua, -2);
  lua_remove(lua, -2);
}

/// The entry of the function or class at 1, found by what it is.
std::string help_on_function(lua_State* lua) {
  return entries_of([lua](const ReferenceEntry& entry) {
    return has_name(entry, [lua](std::string_view name) {
      push_named(lua, name);
      const bool same = !lua_isnil(lua, -1) && lua_rawequal(lua, 1, -1);
      lua_settop(lua, 1);
      return same;
    });
  });
}

std::string help_on_tensor(const at::Tensor& tensor) {
  std::string text = describe(tensor) + "\n";
  if (is_shard_tensor(tensor)) {
    text +=
        "  x:full_tensor() is the global tensor on every rank, x:to_local() this rank's block,\n"
        "  x:redistribute(placements) the same tensor under other placements.\n";
  } else {
    text += "  mh.distribute_tensor(x, mesh, {mh.Shard(0)}) cuts it over the ranks of a mesh.\n";
  }
  return text +
         "  x:item(), x:tolist(), x[\"0:2, 1\"] read elements; `help \"Tensor\"` lists attributes and methods.\n";
}

/// Returns the names that objects of a class have; of a module, the entry that makes it.
std::string help_on_class(const std::string& name) {
  const std::string members = members_of(name);
  if (!members.empty()) return members;
  return entries_of([&](const ReferenceEntry& entry) {
    return has_name(entry, [&](std::string_view one) { return one == "mh.nn." + name; });
  });
}

/// The entry of what is at 1.
std::string help_on_value(lua_State* lua) {
  if (lua_gettop(lua) == 0) return help_overview();
  lua_settop(lua, 1);
  if (lua_type(lua, 1) == LUA_TSTRING) return help_on(lua_tostring(lua, 1));
  if (const at::Tensor* tensor = to_tensor(lua, 1)) return help_on_tensor(*tensor);
  std::string text = help_on_function(lua);
  if (text.empty() && luaL_getmetafield(lua, 1, "__name") == LUA_TSTRING) text = help_on_class(lua_tostring(lua, -1));
  TORCH_CHECK_VALUE(!text.empty(), "help: the reference has no entry of ", describe(lua, 1),
                    "\n  fix   help \"NAME\" finds by name; `moonhalo help --search WORDS` searches the entries");
  return text;
}

int help_function(lua_State* lua) {
  const std::string text = help_on_value(lua);
  if (context(lua).rank() != 0) return 0;
  lua_getglobal(lua, "print");
  push(lua, text.substr(0, text.find_last_not_of('\n') + 1));
  lua_call(lua, 1, 0);
  return 0;
}

}  // namespace

std::string help_on(const std::string& name) {
  using Name = std::string_view;
  const auto named = [](const auto& fits) {
    return entries_of([&](const ReferenceEntry& entry) { return has_name(entry, fits); });
  };
  std::string text = named([&](Name one) { return one == name || one == "mh." + name; });
  if (text.empty()) text = entries_of([&](const ReferenceEntry& entry) { return begins_a_line(entry.text, name); });
  if (text.empty()) text = members_of(name);
  if (text.empty()) text = named([&](Name one) { return ends_in_name(one, name); });
  if (text.empty()) text = operator_help(name.substr(name.find_last_of(".:") + 1));
  const std::string small = lower(name);
  if (text.empty()) text = named([&](Name one) { return ends_in_name(lower(one), small); });
  TORCH_CHECK_VALUE(!text.empty(), "help: no name '", name, "'", did_you_mean(name, known_names()),
                    "\n  fix   `moonhalo help --search WORDS` searches the entries");
  return text;
}

std::string help_search(const std::string& words) {
  std::vector<std::string> required;
  std::istringstream parts(lower(words));
  for (std::string word; parts >> word;) required.push_back(word);
  if (required.empty()) return "";
  std::vector<std::pair<int, std::pair<std::string_view, const ReferenceEntry*>>> found;
  for (const ReferenceEntry& entry : reference()) {
    std::string names;
    for (const std::string_view name : entry.names) names += lower(name) + " ";
    const std::string text = lower(entry.text), sentence = lower(summary(entry));
    int score = 0;
    const bool fits = std::all_of(required.begin(), required.end(), [&](const std::string& word) {
      score += names.find(word) != std::string::npos ? 3 : sentence.find(word) != std::string::npos ? 1 : 0;
      return text.find(word) != std::string::npos || names.find(word) != std::string::npos;
    });
    if (fits) found.push_back({-score, {entry.names.front(), &entry}});
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::pair<std::string_view, const ReferenceEntry*>> rows;
  for (size_t i = 0; i < std::min(found.size(), kMostFound); ++i) rows.push_back(found[i].second);
  std::string text = list_of(rows);
  if (found.size() > kMostFound) text += "... " + std::to_string(found.size() - kMostFound) + " more; add a word\n";
  const std::string operators = operators_with(required);
  return text + (text.empty() || operators.empty() ? "" : "\n") + operators;
}

std::string help_overview() {
  std::map<std::string, int> owners;
  for (const ReferenceEntry& entry : reference()) {
    for (const std::string_view name : entry.names) ++owners[std::string(owner_of(name))];
  }
  std::string text =
      "moonhalo help NAME            the entry of a name: mh.nn.Conv2d, Conv2d, x:redistribute, Tensor\n"
      "moonhalo help --search WORDS  entries that have all words\n"
      "moonhalo ops NAME             an operator of LibTorch: how it runs on blocks\n\nTables and classes, with the "
      "number of their entries:\n";
  for (const auto& [owner, count] : owners) text += "  " + owner + " (" + std::to_string(count) + ")\n";
  return text;
}

void set_help_function(lua_State* lua) { lua_register(lua, "help", guard<help_function>); }

}  // namespace moonhalo::scripting
