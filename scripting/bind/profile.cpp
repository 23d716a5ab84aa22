// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/bind/profile.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <unordered_map>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/profile/profiler.h"
#include "moonhalo/io/formats/profile_files.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/error_place.h"
#include "moonhalo/scripting/core/lua_sources.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<Profiler> = "Profiler";

namespace {

/// Numbers of the lines of scripts, by the address of a chunk's name, which a later chunk may have: the name is
/// compared.
class ScriptLines {
 public:
  uint16_t operator()(Recorder& recorder) {
    lua_State* lua = recorded_state();
    if (lua == nullptr) return 0;
    lua_Debug frame;
    for (int level = 0; lua_getstack(lua, level, &frame); ++level) {
      lua_getinfo(lua, "Sl", &frame);
      if (frame.currentline > 0 && !is_embedded_chunk(frame.source)) return number_of(recorder, frame);
    }
    return 0;
  }

 private:
  struct Known {
    std::string chunk;
    uint16_t number = 0;
  };
  uint16_t number_of(Recorder& recorder, const lua_Debug& frame) {
    const uint64_t key = (reinterpret_cast<uint64_t>(frame.source) << 20) ^ static_cast<uint64_t>(frame.currentline);
    Known& known = known_[key];
    if (known.number == 0 || known.chunk != frame.short_src) {
      known = {frame.short_src, recorder.note_line(with_whole_path(frame.short_src, frame.source) + ":" +
                                                   std::to_string(frame.currentline))};
    }
    return known.number;
  }
  std::unordered_map<uint64_t, Known> known_;
};

std::shared_ptr<Profiler> make_profiler(lua_State* lua, int64_t most_events, bool nvtx) {
  if (Recorder::of_this_rank() == nullptr) forget_recorded_modules(lua);
  return std::make_shared<Profiler>(context(lua).world, ScriptLines(), most_events, nvtx);
}

// ---- The profile of a run ----

const char kRunProfileKey = 0;

struct RunProfile {
  std::shared_ptr<Profiler> profiler;
  ProfileRequest request;
};

}  // namespace

template <>
inline constexpr const char* kObjectName<RunProfile> = "RunProfile";

namespace {

std::shared_ptr<RunProfile> run_profile(lua_State* lua) {
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kRunProfileKey);
  auto found = to_object<RunProfile>(lua, -1);
  lua_pop(lua, 1);
  return found;
}

/// The folder that was asked for; the default one is in the run folder, if there is one.
std::string folder_of(lua_State* lua, const ProfileRequest& request) {
  if (request.folder != kDefaultProfileFolder) return request.folder;
  const int top = lua_gettop(lua);
  std::string folder = request.folder;
  luaL_getsubtable(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  if (lua_getfield(lua, -1, "moonhalo.internal.run_folder") == LUA_TTABLE &&
      lua_getfield(lua, -1, "current") == LUA_TTABLE && lua_getfield(lua, -1, "folder") == LUA_TSTRING)
    folder = lua_tostring(lua, -1) + ("/" + folder);
  lua_settop(lua, top);
  return folder;
}

/// Collective.
void save_run_profile(lua_State* lua, const RunProfile& profile) {
  const Profiler& profiler = *profile.profiler;
  const std::string folder = folder_of(lua, profile.request);
  io::save_profile(profiler, folder);
  if (context(lua).quiet || profiler.world().rank() != 0) return;
  const std::string table = profile_table(profiler.summary(), ProfileBy::kModule);
  std::fflush(stdout);
  std::fprintf(stderr, "moonhalo: profile in %s: %s\n", folder.c_str(), table.substr(0, table.find("\n\n")).c_str());
}

/// mh.profile{steps = {3, 5}, folder = "profile", nvtx = false} -> nothing
///   Records where the time of these training steps goes, and saves it in the step() of the optimizer that ends the
///   last one: `moonhalo profile FOLDER` shows it. Steps are the calls of step() of the optimizer that steps first,
///   from 1; the first steps plan and are slower. `moonhalo run --profile` does the same. What was requested before is
///   dropped. A dry run (--backend fake) records nothing, because it writes no files.
///   steps       {integer}   the first and the last step, at most 65535
///   folder      string      where the files go; it is made. The default one is in the run folder, if there is one
///   nvtx        boolean     every event is an NVTX range, too, for Nsight Systems; needs LibTorch with CUDA
///   returns     nothing
///   collective  over all ranks, also the step() that ends the last step
///   errors      ValueError: steps that are not two numbers from 1 to 65535, the first not above the last
///   errors      RuntimeError: a profiler runs
///   errors      NotImplementedError: nvtx without CUDA
///   example
///     mh.profile{steps = {1, 2}, folder = folder .. "/profile"}
///     local net = nn.Linear(2, 1)
///     local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
///     for _ = 1, 2 do
///       net(mh.ones{1, 2}):sum():backward()
///       opt:step()
///     end
///     io.open(folder .. "/profile/table.txt"):read(4)    --> step
int profile(lua_State* lua) {
  const Options options(lua, 1, "profile", {"steps", "folder", "nvtx"});
  const std::vector<int64_t> steps = options.get_int_list("steps", {3, 5});
  TORCH_CHECK_VALUE(steps.size() == 2, "profile: 'steps' has ", steps.size(), " numbers\n  have  ", steps,
                    "\n  fix   give the first and the last step, steps = {3, 5}");
  ProfileRequest request{options.get_string("folder", kDefaultProfileFolder), steps[0], steps[1],
                         options.get_bool("nvtx", false)};
  TORCH_CHECK_VALUE(!request.folder.empty(), "profile: 'folder' is empty\n  have  folder = \"\"\n  fix   give a path");
  begin_run_profile(lua, request);
  return 0;
}

// ---- Profilers of scripts ----

/// mh.profiler{events = 1000000, nvtx = false} -> Profiler
///   A profiler that records from start to stop. Steps of optimizers divide what it records.
///   events      integer     the most events that are kept on a rank; then it stops recording
///   nvtx        boolean     every event is an NVTX range, too, for Nsight Systems; needs LibTorch with CUDA
///   returns     Profiler    with start, stop, table and save
///   collective  no
///   errors      ValueError: events below 1
///   example
///     local p = mh.profiler()
///     p:start()
///     mh.ones({8, 8}):sum()
///     p:stop()
///     p:table{by = "operator"}:match("aten::sum") ~= nil    --> true
int new_profiler(lua_State* lua) {
  const Options options(lua, 1, "profiler", {"events", "nvtx"});
  const int64_t events = options.get_int("events", Recorder::kMostEvents);
  push_object(lua, make_profiler(lua, events, options.get_bool("nvtx", false)));
  return 1;
}

/// profiler:start() -> nothing
///   Begins to record on this rank. What was recorded before is dropped.
///   returns     nothing
///   collective  no
///   errors      RuntimeError: another profiler runs on this rank
///   errors      NotImplementedError: nvtx without CUDA
///   example
///     local p = mh.profiler()
///     p:start()
///     p:stop()
///     p:table():match("^step") ~= nil    --> true
int start(lua_State* lua) {
  check_object<Profiler>(lua, 1)->start();
  return 0;
}

/// profiler:stop() -> nothing
///   Ends recording and adds up what all ranks recorded. Where one rank fails, all raise its error.
///   returns     nothing
///   collective  over all ranks
///   errors      RuntimeError: it was not started on all ranks
///   example
///     local p = mh.profiler()
///     p:start()
///     p:stop()
///     pcall(p.stop, p) == false    --> true
int stop(lua_State* lua) {
  const auto profiler = check_object<Profiler>(lua, 1);
  {
    const ScopedStatsPause not_counted;
    fail_together(profiler->world(), [&] {
      TORCH_CHECK(profiler->running(), "profiler: stop without a start\n  fix   call p:start() first, on all ranks");
    });
  }
  profiler->stop();
  return 0;
}

/// profiler:table({by = "operator", sort = "self", rows = 40}) -> string
///   What was recorded, as a table. Times are milliseconds of a step of one rank: total with what is called within,
///   self without, own self without blocked: the part of self in calls of communicators. Self times add up to the
///   step; by rank those of each row do. MACs are the multiplications of matrix products, convolutions and fused
///   attention, GMAC/s those of a second of these operators.
///   by          "operator"|"module"|"line"|"phase"|"rank"|"communication"   what the rows are about
///   sort        "self"|"total"|"calls"|"name"|"own"|"blocked"|"macs"   the column to sort by, the largest first
///   rows        integer     the largest number of rows
///   returns     string      lines, the same on all ranks
///   collective  no
///   errors      ValueError: an unknown table or column
///   errors      RuntimeError: the profiler was not stopped
///   example
///     local p = mh.profiler()
///     p:start()
///     mh.ones({8, 8}):sum()
///     p:stop()
///     p:table{by = "phase", sort = "name"}:match("forward") ~= nil    --> true
int table(lua_State* lua) {
  const auto profiler = check_object<Profiler>(lua, 1);
  const Options options(lua, 2, "profiler: table", {"by", "sort", "rows"});
  const ProfileBy by = parse_profile_by(options.get_string("by", "operator"));
  const ProfileSort sort = parse_profile_sort(options.get_string("sort", "self"));
  const int64_t rows = options.get_int("rows", 40);
  TORCH_CHECK_VALUE(rows > 0, "profiler: table: rows is ", rows, "\n  have  rows = ", rows, "\n  fix   give 1 or more");
  push(lua, profile_table(profiler->summary(), by, sort, static_cast<size_t>(rows)));
  return 1;
}

/// profiler:memory(rows = 40) -> string
///   Memory of tensors in host memory at the peak while the profiler ran, by the module and the part of the step in
///   which they were made, on the rank that had most. "(before)" is what was there when it started.
///   rows        integer     the largest number of rows
///   returns     string      lines, the same on all ranks
///   collective  no
///   errors      RuntimeError: the profiler was not stopped
///   example
///     local p = mh.profiler()
///     p:start()
///     mh.ones({800, 8}):sum()
///     p:stop()
///     p:memory():match("peak of tensors") ~= nil    --> true
int memory(lua_State* lua) {
  const auto profiler = check_object<Profiler>(lua, 1);
  const int64_t rows = is_nil(lua, 2) ? 40 : check_int(lua, 2);
  TORCH_CHECK_VALUE(rows > 0, "profiler: memory: rows is ", rows, "\n  have  rows = ", rows,
                    "\n  fix   give 1 or more");
  push(lua, memory_table(profiler->summary(), static_cast<size_t>(rows)));
  return 1;
}

/// profiler:save(folder) -> nothing
///   Writes what was recorded: table.txt, skew.txt, trace.json.gz for Perfetto, flame.txt (collapsed stacks), and
///   profile.json for `moonhalo profile FOLDER`. A dry run (--backend fake) writes none of them.
///   folder      string      is made
///   returns     nothing
///   collective  over all ranks
///   errors      ValueError: the disk refuses
///   errors      RuntimeError: the profiler was not stopped
///   example
///     local p = mh.profiler()
///     p:start()
///     p:stop()
///     p:save(folder .. "/profile")
///     io.open(folder .. "/profile/table.txt"):read(4)    --> step
int save(lua_State* lua) {
  const auto profiler = check_object<Profiler>(lua, 1);
  const std::string folder = check_string(lua, 2);
  profiler->summary();  // throws where nothing was recorded
  if (!profiler->world().is_fake()) io::save_profile(*profiler, folder);
  return 0;
}

/// mh.record(name, fn, ...) -> any
///   Calls fn(...) as a range of its own in profiles. Costs nothing while no profiler runs.
///   name        string      what profiles call it
///   fn          function    called with the other arguments
///   returns     any         what fn returns
///   collective  as fn
///   errors      TypeError: fn is not a function
///   example
///     mh.record("assimilate", math.max, 2, 3)    --> 3
int record_range(lua_State* lua) {
  const std::string name = check_string(lua, 1);
  if (!is_callable(lua, 2)) argument_error(lua, 2, "a function");
  const RecordRange range(name);
  lua_call(lua, lua_gettop(lua) - 2, LUA_MULTRET);
  return lua_gettop(lua) - 1;
}

/// _record_reading(fn, ...) -> what fn(...) returns, recorded as a part of the step.
int record_reading(lua_State* lua) {
  const RecordPart part("reading", Phase::kReading);
  lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
  return lua_gettop(lua);
}

/// _record_optimizer(step, optimizer, ...) -> what step(optimizer, ...) returns, recorded as the end of a step.
int record_optimizer(lua_State* lua) {
  const void* optimizer = lua_topointer(lua, 2);
  {
    const RecordPart part("optimizer", Phase::kOptimizer);
    lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
  }
  note_optimizer_step(optimizer);
  return lua_gettop(lua);
}

const luaL_Reg kProfileFunctions[] = {{"profile", guard<profile>},
                                      {"profiler", guard<new_profiler>},
                                      {"record", guard<record_range>},
                                      {"_record_reading", guard<record_reading>},
                                      {"_record_optimizer", guard<record_optimizer>},
                                      {nullptr, nullptr}};
const luaL_Reg kProfilerMethods[] = {{"start", guard<start>},   {"stop", guard<stop>}, {"table", guard<table>},
                                     {"memory", guard<memory>}, {"save", guard<save>}, {nullptr, nullptr}};

const luaL_Reg kNoMethods[] = {{nullptr, nullptr}};

const Binding profile_binding("profile", [](lua_State* lua) {
  define_object<Profiler>(lua, kProfilerMethods);
  define_object<RunProfile>(lua, kNoMethods);
  add_functions(lua, kProfileFunctions);
});

}  // namespace

void begin_run_profile(lua_State* lua, const ProfileRequest& request) {
  if (request.folder.empty() || context(lua).world->is_fake()) return;
  if (const auto before = run_profile(lua)) before->profiler->drop();
  const auto profile =
      std::make_shared<RunProfile>(RunProfile{make_profiler(lua, Recorder::kMostEvents, request.nvtx), request});
  const std::weak_ptr<RunProfile> weak = profile;
  // The main thread of the state, which is there as long as the profile.
  lua_State* const main = state_data(lua)->lua;
  profile->profiler->record_steps(request.first, request.last, [weak, main] {
    if (const auto finished = weak.lock()) save_run_profile(main, *finished);
  });
  push_object(lua, profile);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kRunProfileKey);
}

void end_run_profile(lua_State* lua) {
  const auto profile = run_profile(lua);
  if (!profile || profile->profiler->stopped()) return;
  profile->profiler->stop();
  const ProfileSummary& summary = profile->profiler->summary();
  if (!summary.steps.empty()) return save_run_profile(lua, *profile);
  if (context(lua).rank() != 0) return;
  std::fflush(stdout);
  std::fprintf(
      stderr,
      "moonhalo: no profile: the run ended before the end of step %lld\n  have  steps are the calls of opt:step()\n"
      "  fix   --profile-steps 1:%lld, or mh.profile{steps = {1, %lld}}, records from the beginning\n",
      static_cast<long long>(profile->request.first), 3LL, 3LL);
}

}  // namespace moonhalo::scripting
