// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/call_watch.h"

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {
namespace {

constexpr int kInstructionsPerLook = 10000;
constexpr std::chrono::milliseconds kPollInterval{100};
const char kWatchKey = 0;

/// Returns why the other ranks no longer wait for this call, or nothing while they do.
std::optional<std::string> ended_by_others(Communicator& control) {
  if (control.size() == 1) return std::nullopt;
  try {
    const int rank = backend_of(control).suspended_rank();
    if (rank < 0) return std::nullopt;
    return "rank " + std::to_string(rank) + " has ended this call";
  } catch (const CommError& error) {  // the program has ended its MPI
    return error.what();
  }
}

}  // namespace

CallWatch::CallWatch(lua_State* lua, const CommunicatorPtr& control) : control_(control) {
  lua_pushlightuserdata(lua, this);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kWatchKey);
  lua_sethook(lua, hook, LUA_MASKCOUNT, kInstructionsPerLook);
}

CallWatch::Limited::Limited(CallWatch& watch, const std::string& call, std::optional<std::chrono::milliseconds> budget)
    : watch_(watch) {
  watch_.call_ = call;
  watch_.budget_ = budget;
  if (budget) watch_.ends_ = Clock::now() + *budget;
}

CallWatch::Limited::~Limited() {
  watch_.call_.clear();
  watch_.budget_.reset();
}

void CallWatch::hook(lua_State* lua, lua_Debug*) {
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kWatchKey);
  auto* const watch = static_cast<CallWatch*>(lua_touserdata(lua, -1));
  lua_pop(lua, 1);
  watch->poll(lua);
}

/// Raises an error of Lua where the code must end, with no object of C++ alive.
void CallWatch::poll(lua_State* lua) {
  const Clock::time_point now = Clock::now();
  bool ends = false;
  if (budget_ && now >= ends_) {
    const std::string rank = control_->size() > 1 ? " on rank " + std::to_string(control_->rank()) : "";
    push_exit(lua, ScriptStop(script_position(lua) + call_ + ": the function did not end within its budget" + rank +
                              "\n  have  call_budget_s = " + seconds_text(*budget_) +
                              "\n  fix   look for a loop without an end at this line, or give a larger budget"));
    ends = true;
  } else if (now >= polls_others_) {
    polls_others_ = now + kPollInterval;
    if (const auto why = ended_by_others(*control_)) {
      context(lua).rank_was_lost = true;
      push_exit(
          lua, ScriptStop(script_position(lua) + "the other ranks do not wait for this call any more\n  have  " + *why +
                          "\n  fix   look for a loop without an end at this line; timeout_s says how long "
                          "they wait"));
      ends = true;
    }
  }
  if (ends) lua_error(lua);
}

}  // namespace moonhalo::scripting
