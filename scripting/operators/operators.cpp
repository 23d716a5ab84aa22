// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/operators.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/operators/schema_call.h"

namespace moonhalo::scripting {

namespace {

/// Namespaces whose operators are called without naming them.
constexpr const char* kNamespaces[] = {"aten", "moonhalo"};

struct Catalogue {
  std::mutex mutex;
  /// "aten::add" -> its overload names
  std::unordered_map<std::string, std::vector<c10::OperatorName>> known;
  std::map<std::string, std::unique_ptr<OperatorSet>> sets;
};

Catalogue& catalogue() {
  static Catalogue all;
  return all;
}

void read_dispatcher(Catalogue& all) {
  all.known.clear();
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    all.known[name.name].push_back(name);
  }
}

std::vector<std::string> full_names(const std::string& name) {
  if (name.find("::") != std::string::npos) return {name};
  std::vector<std::string> names;
  for (const char* space : kNamespaces) names.push_back(std::string(space) + "::" + name);
  return names;
}

std::unique_ptr<OperatorSet> make_set(const Catalogue& all, const std::string& name) {
  auto set = std::make_unique<OperatorSet>();
  set->name = name;
  for (const std::string& full : full_names(name)) {
    const auto known = all.known.find(full);
    if (known == all.known.end()) continue;
    std::vector<c10::OperatorName> overloads = known->second;
    std::sort(overloads.begin(), overloads.end(),
              [](const auto& a, const auto& b) { return a.overload_name < b.overload_name; });
    for (const c10::OperatorName& overload : overloads) {
      // A name without a schema has kernels only: nothing to check arguments against, nothing to
      // call.
      if (auto op = c10::Dispatcher::singleton().findSchema(overload)) set->overloads.push_back(*op);
    }
  }
  return set->overloads.empty() ? nullptr : std::move(set);
}

/// Upvalues: the OperatorSet, whether it is a method.
int call_closure(lua_State* lua) {
  const auto* set = static_cast<const OperatorSet*>(lua_touserdata(lua, lua_upvalueindex(1)));
  return call_operator(lua, *set, lua_toboolean(lua, lua_upvalueindex(2)));
}

}  // namespace

const OperatorSet* find_operator(const std::string& name) {
  Catalogue& all = catalogue();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.sets.find(name); found != all.sets.end()) return found->second.get();
  std::unique_ptr<OperatorSet> set = make_set(all, name);
  if (!set) {
    read_dispatcher(all);
    set = make_set(all, name);
  }
  if (!set) return nullptr;
  return all.sets.emplace(name, std::move(set)).first->second.get();
}

std::vector<std::string> operator_names() {
  Catalogue& all = catalogue();
  const std::lock_guard lock(all.mutex);
  read_dispatcher(all);
  std::vector<std::string> names;
  for (const auto& [full, overloads] : all.known) {
    for (const char* space : kNamespaces) {
      const std::string prefix = std::string(space) + "::";
      if (full.starts_with(prefix)) names.push_back(full.substr(prefix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool push_operator(lua_State* lua, const std::string& name, bool method) {
  const OperatorSet* set = find_operator(name);
  if (!set) return false;
  lua_pushlightuserdata(lua, const_cast<OperatorSet*>(set));
  lua_pushboolean(lua, method);
  lua_pushcclosure(lua, guard<call_closure>, 2);
  return true;
}

namespace {
[[maybe_unused]] const bool given = (set_operator_functions({&push_operator, &operator_names}), true);
}

}  // namespace moonhalo::scripting
