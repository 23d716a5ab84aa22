// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>

#include <lua.hpp>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/as_rank.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/tensor/box_set.h"
#include "moonhalo/engine/tensor/host_block.h"
#include "moonhalo/engine/tensor/host_halos.h"
#include "moonhalo/scripting/embed/call_watch.h"
#include "moonhalo/scripting/embed/outcome.h"

namespace moonhalo::scripting {

class SideThread;
class TrainerLink;

/// A Lua script inside a simulation code, one object on each rank: what moonhalo_c.h says, in C++. Errors are outcomes.
class HostSession {
 public:
  bool is_of_this_thread() const { return thread_ == std::this_thread::get_id(); }
  /// The engine's state for the rank of this session.
  RankContext& rank_context() { return *context_; }

  /// `world` serves the script; on `control`, another world of the same ranks, these agree on how a call ended.
  /// `budget`: how long a function of the script may run.
  /// `check_finite`: whether calls look for fields and numbers that are not finite.
  HostSession(CommunicatorPtr world, CommunicatorPtr control, std::optional<std::chrono::milliseconds> budget,
              bool check_finite);
  ~HostSession();

  /// Opens the Lua state and runs the script. Once, first. Collective, as all that return an Outcome.
  Outcome open(const std::string& script, const std::string& settings);
  /// `make` gives this rank's block, and may throw. Null: the name is unregistered. `filled`: the solver fills the
  /// ghosts before it calls. `note` ends the message where the ranks' blocks do not go together.
  Outcome field(const std::string& name, const std::function<Block()>& make, bool filled, const std::string& note = "");
  /// A field that this rank holds in boxes, copied at each call; the rest as above.
  Outcome boxes(const std::string& name, const std::function<std::vector<Block>()>& make, const std::string& note = "");
  Outcome call(const std::string& function, std::span<const double> in, std::span<double> out);
  /// The same on a thread of its own, over copies of the fields; until the end nothing else can be done here.
  Outcome call_begin(const std::string& function, std::span<const double> in);
  Outcome call_end(std::span<double> out);
  Outcome save(const std::string& path);
  Outcome load(const std::string& path);
  Outcome sync();
  /// A failure that is found before anything was done: of this call's arguments, on this rank.
  Outcome refuse(const std::string& what, const std::string& problem);
  std::string report() const;
  /// For the script, while it is opened: its last `trainers` ranks become a world of their own, as do the others, and
  /// all calls after mh_open are collective over these. Collective.
  void divide(lua_State* lua, int trainers);
  /// Checks that the script has divided its ranks.
  TrainerLink& link() const;
  CommunicatorPtr world() const { return world_; }
  /// Waits for a snapshot, and shows it to the script as these fields. Nothing when there will be no more.
  std::optional<std::vector<double>> next_snapshot(const std::vector<std::string>& names);
  /// Checks a call that other ranks need not know of: whether this thread may make it.
  Outcome check_thread(const std::string& what) const;

  /// An error while a call is under way beside the solver.
  Outcome check_idle(const std::string& what) const;

 private:
  struct Field {
    SpecPtr spec;
    at::Tensor tensor;
    std::optional<HostHalos> ghosts = {};
  };
  /// Holds what a function returned: numbers, up to as many as are required or the first value that is none.
  struct Results {
    std::vector<double> numbers = {};
    int count = 0;
    std::string other = {};
    void give(const std::string& function, std::span<double> out) const;
  };
  struct Beside;

  Outcome together(const std::string& what, const std::function<void()>& work);
  Outcome together_here(const std::string& what, const std::function<void()>& work);
  Outcome agree_within(const FailedWaits& waits, const std::string& what, const Outcome& mine);
  std::optional<CallWatch::Limited> limit_call(const std::string& what);
  void adopt_state();
  void show_fields(bool as_they_were);
  void read_boxes();
  void write_boxes();
  void run_in_lua(c10::function_ref<void(lua_State*)> work);
  void open_state(const std::string& script, const std::string& settings);
  static void push_trainer_functions(lua_State* lua, HostSession* session);
  void set_field(const std::string& name, const at::Tensor& tensor);
  void set_mask(const std::string& name, const at::Tensor& mask);
  void set_entry(const char* table, const std::string& name, const at::Tensor& tensor);
  void check_finite(mh_status status, const std::string& what, const char* kind, std::span<const double> numbers,
                    bool fields, const char* when) const;
  void register_field(const std::string& name, const std::function<Block()>& make, bool filled,
                      const std::string& note);
  Results call_function(lua_State* lua, const std::string& name, std::span<const double> in, int required);
  void call_host(const char* function, const std::string& path);
  MeshPtr mesh_for(const BoxGrid& grid);
  std::vector<std::string> functions(lua_State* lua) const;

  CommunicatorPtr world_, control_;
  CommunicatorPtr part_, control_group_;  // these after mh_open, where the script has divided its ranks
  std::unique_ptr<TrainerLink> link_;
  std::unique_ptr<RankContext> context_ = std::make_unique<RankContext>();  // what the engine remembers for the session
  const std::optional<std::chrono::milliseconds> budget_;
  const bool check_finite_;
  uint64_t calls_ = 0;  // of functions of the script
  std::unique_ptr<CallWatch> watch_;
  std::unique_ptr<lua_State, void (*)(lua_State*)> state_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::set<std::string> known_globals_;                                              // before the script ran
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, MeshPtr> meshes_;  // by shape and places of ranks
  std::map<std::string, Field> fields_;
  struct Boxes {
    BoxSet set;
    uint32_t version;  ///< of the field before the call
  };
  std::map<std::string, Boxes> boxes_;
  std::string ended_;  // why the session is of no further use
  std::unique_ptr<SideThread> side_;
  std::unique_ptr<Beside> beside_;  // the call that it does
};

}  // namespace moonhalo::scripting
