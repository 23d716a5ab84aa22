// SPDX-License-Identifier: Apache-2.0
// The search of mh.parallelize's policy "autodist" by times on a machine.
#include "moonhalo/engine/forecast/search/division_search.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/launch/sha256.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/collect_garbage.h"

namespace moonhalo::scripting {
namespace {

/// The script's world is another one for the lifetime of the object.
class OtherWorld {
 public:
  OtherWorld(lua_State* lua, Communicator& world) : context_(context(lua)), before_(context_.world) {
    context_.world = world.shared_from_this();
  }
  ~OtherWorld() { context_.world = before_; }
  OtherWorld(const OtherWorld&) = delete;
  OtherWorld& operator=(const OtherWorld&) = delete;

 private:
  Context& context_;
  CommunicatorPtr before_;
};

SearchOptions read_search(lua_State* lua, int index) {
  const Options given(
      lua, index, "parallelize: policy 'autodist'",
      {"machine", "backend", "ranks", "units", "memory_limit", "measure", "most_data", "most_rows", "most_columns",
       "most_tensor", "most_stages", "recompute", "samples", "micro_batches", "may_copy", "may_store", "units_store"});
  SearchOptions options;
  const std::string machine = given.get_string("machine", "");
  // Rank 0 searches: the others may be on hosts without the file.
  run_on_first_rank(*context(lua).world, [&] {
    options.machine = read_machine(machine);
    return std::string();
  });
  options.backend = given.get_string("backend", "");
  options.units = given.get_int("units", 1);
  options.units_store = given.get_bool("units_store", false);
  options.memory_limit = given.get_int("memory_limit", 0);
  if (context(lua).shows_searches) {
    options.progress = [](const std::string& text) {
      std::fprintf(stderr, "parallelize: autodist: %s\n", text.c_str());
    };
  }
  if (given.has("measure")) options.measure = given.get_int("measure", 0);
  options.space = {.ranks = given.get_int("ranks", 1),
                   .most_data = given.get_int("most_data", 1),
                   .most_rows = given.get_int("most_rows", 1),
                   .most_columns = given.get_int("most_columns", 1),
                   .most_tensor = given.get_int("most_tensor", 1),
                   .most_stages = given.get_int("most_stages", 1),
                   .samples = given.get_int("samples", DivisionSpace::kAny),
                   .micro_batches = given.get_int_list("micro_batches", {1}),
                   .may_store = given.get_bool("may_store", true),
                   .may_copy = given.get_bool("may_copy", true),
                   .may_recompute = given.get_bool("recompute", false)};
  return options;
}

void push_division(lua_State* lua, const Division& division) {
  lua_newtable(lua);
  set_field(lua, "data", division.data);
  set_field(lua, "rows", division.rows);
  set_field(lua, "columns", division.columns);
  set_field(lua, "tensor", division.tensor);
  set_field(lua, "stored", division.is_stored);
  set_field(lua, "recompute", division.recomputes);
  set_field(lua, "stages", division.stages);
  set_field(lua, "micro_batches", division.micro_batches);
}

/// Collections come by the memory that Lua has now: that of a search, which grows from one division to the next, would
/// let the tensors of a step stay for longer than in the run.
class CollectAsNow {
 public:
  explicit CollectAsNow(lua_State* lua) : state_(*state_data(lua)) {
    collect_garbage(lua);
    state_.lua_kilobytes = lua_gc(lua, LUA_GCCOUNT);
  }
  ~CollectAsNow() { state_.lua_kilobytes = 0; }
  CollectAsNow(const CollectAsNow&) = delete;
  CollectAsNow& operator=(const CollectAsNow&) = delete;

 private:
  StateData& state_;
};

Searched searched(const SearchResult& found) {
  const auto forecast =
      std::min_element(found.ranked.begin(), found.ranked.end(), [](const DivisionResult& a, const DivisionResult& b) {
        const auto key = [](const DivisionResult& one) {
          return std::pair(one.fate != DivisionResult::Fate::kForecast, one.step);
        };
        return key(a) < key(b);
      });
  const auto measured = std::count_if(found.ranked.begin(), found.ranked.end(),
                                      [](const DivisionResult& one) { return one.measured.has_value(); });
  return {measured, found.best().text(), forecast->division.text()};
}

/// _search_divisions(options, build) -> the JSON of the result, and its table. build(division) gives the function that
/// does a step, and the list of trained parameters. Within it and the step the world is the one that the division is
/// for. Collective.
int search(lua_State* lua) {
  lua_settop(lua, 2);
  const SearchOptions options = read_search(lua, 1);
  CommunicatorPtr real = context(lua).world;
  const CollectAsNow collections(lua);
  const BuildDivided build = [lua](const Division& division, Communicator& world) {
    const OtherWorld within(lua, world);
    lua_pushvalue(lua, 2);
    push_division(lua, division);
    call_traced(lua, 1, 2);
    BuiltStep built;
    built.parameters = check_tensor_list(lua, -1);
    lua_pop(lua, 1);
    const std::shared_ptr<int> slot(new int(luaL_ref(lua, LUA_REGISTRYINDEX)), [lua](int* number) {
      luaL_unref(lua, LUA_REGISTRYINDEX, *number);
      delete number;
      collect_garbage(lua);
    });
    built.step = [lua, slot, &world] {
      const OtherWorld within(lua, world);
      // Fake tensors take no memory. When they are freed matters only where that is recorded.
      const bool is_seen = !world.is_fake() || Recorder::of_this_rank() != nullptr;
      const ScopedValue rarely(state_data(lua)->collects_rarely, !is_seen);
      lua_rawgeti(lua, LUA_REGISTRYINDEX, *slot);
      call_traced(lua, 0, 0);
      if (world.is_fake()) collect_garbage(lua);
    };
    return built;
  };
  if (!makes_fakes()) refuse_fakes();
  const SearchResult found = search_divisions(*real, options, build);
  context(lua).searched = searched(found);
  push(lua, to_json(found));
  push(lua, to_text(found));
  return 2;
}

/// _key_of_search{machine =, backend =, ranks =, units =} -> hexadecimal digits that stand for what the file of the
/// machine says on rank 0, however it is laid out; the backend that sends the messages in the forecasts. Collective.
int key_of_search(lua_State* lua) {
  const Options given(lua, 1, "parallelize: policy 'autodist'", {"machine", "backend", "ranks", "units"});
  Communicator& world = *context(lua).world;
  SearchOptions options;
  options.backend = given.get_string("backend", "");
  options.space.ranks = given.get_int("ranks", 1);
  options.units = given.get_int("units", 1);
  constexpr size_t kDigits = 16;
  const std::string key = run_on_first_rank(world, [&] {
    options.machine = read_machine(given.get_string("machine", ""));
    return hex(sha256(to_json(options.machine))).substr(0, kDigits) + backend_of_search(world, options);
  });
  push(lua, key.substr(0, kDigits));
  push(lua, key.substr(kDigits));
  return 2;
}

const luaL_Reg kSearchFunctions[] = {
    {"_search_divisions", guard<search>}, {"_key_of_search", guard<key_of_search>}, {nullptr, nullptr}};

const Binding search_binding{"timed_search", [](lua_State* lua) { add_functions(lua, kSearchFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
