// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lua.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::scripting {

/// The last search of a script (autodist with a machine), on the ranks that run.
struct Searched {
  int64_t measured = 0;  ///< divisions whose real steps it took the times of
  std::string taken;     ///< the division that it took
  std::string forecast;  ///< the one with the shortest forecast, which a search without real steps takes
};

/// The facts that one Lua state has about its run. One per state, a state belongs to one rank and one thread.
struct Context {
  CommunicatorPtr world;  ///< never null; a world of one outside parallel runs
  bool ranks_are_threads = false;
  c10::Device device = c10::Device(c10::kCPU);  ///< what the command line asked for
  std::string script;                           ///< path as given, empty in the repl
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> settings;  ///< --set key=value, in order
  std::vector<std::string> config_files;                      ///< --config, in order
  std::string log_file;                                       ///< --log, empty when none
  std::string run_name;                                       ///< --run, empty when none
  std::string resume;                                         ///< --resume: "latest" or a folder, empty when none
  bool quiet = false;
  bool shows_searches = true;  ///< on stderr, where a search is
  int64_t local_rank = -1;     ///< among the ranks of this host; -1 until local_rank(lua) finds it
  Searched searched;
  bool rank_was_lost = false;  ///< set when a CommError reached the script

  int64_t rank() const { return world->rank(); }
  int64_t world_size() const { return world->size(); }

  /// Restarts default_generator() of this rank. The same seed on every rank gives the same numbers on
  /// every rank.
  void manual_seed(uint64_t seed);
  uint64_t seed() const { return seed_; }

 private:
  uint64_t seed_ = 0;
};

Context& context(lua_State* lua);

/// Everything that hangs on one Lua state. Lives until lua_close, or longer while a Reference holds
/// it.
struct StateData {
  Context context;
  lua_State* lua = nullptr;  ///< main thread of the state; null once it is closed
  std::thread::id thread = std::this_thread::get_id();
  int64_t unswept_bytes = 0;     ///< tensor memory handed to Lua since the last collection
  bool collects_rarely = false;  ///< tensors start collections only where they run out of mappings of memory
  int64_t lua_kilobytes = 0;     ///< Lua's own memory, by which collections come; 0: what it has at the time

  /// Registry slots whose References died on other threads; freed by the state's own thread.
  std::mutex dead_mutex;
  std::vector<int> dead_slots;

  /// Values that are held beside tensors (held_values.h): by number; userdata that are kept for autograd.
  std::unordered_map<int64_t, std::weak_ptr<void>> held = {};
  std::unordered_set<at::Tensor*> kept = {};
  std::vector<int64_t> dead_held = {};  ///< as dead_slots
  int64_t held_so_far = 0;
  bool watches_collections = false;
};

/// The state. LuaError when it is closed or belongs to another thread.
lua_State* open_state(const StateData& state);

const std::shared_ptr<StateData>& state_data(lua_State* lua);
/// Enters the state's data in the registry, which keeps it until lua_close.
void keep_state_data(lua_State* lua, std::shared_ptr<StateData> state);

/// Pushes the table that the registry keeps under `key` (the address of a static), made on first
/// use.
void push_registry_table(lua_State* lua, const void* key);

/// A Lua value that C++ holds. May outlive the state and be destroyed on any thread; `push` only on
/// the state's own.
class Reference {
 public:
  Reference() = default;
  Reference(lua_State* lua, int index);
  /// Pushes the value on the state's main stack (`lua()`). LuaError when the state is closed or
  /// belongs to another thread.
  void push() const;
  lua_State* lua() const;
  explicit operator bool() const { return slot_ != nullptr; }

 private:
  struct Slot;
  std::shared_ptr<Slot> slot_;
};

}  // namespace moonhalo::scripting
