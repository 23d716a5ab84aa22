// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/host_session.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <exception>
#include <fstream>
#include <numeric>
#include <sstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/bind/h5.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/strict_globals.h"
#include "moonhalo/scripting/core/warnings.h"
#include "moonhalo/scripting/embed/finite.h"
#include "moonhalo/scripting/embed/trainer_link.h"
#include "moonhalo/scripting/program/run_start.h"
#include "moonhalo/scripting/program/session.h"
#include "moonhalo/version.h"

namespace moonhalo::scripting {

namespace {

[[noreturn]] void refuse_setting(const std::string& word, const std::string& problem, const std::string& text) {
  throw HostError(MH_USAGE, "mh_open: settings: '" + word + "' " + problem + "\n  have  \"" + text +
                                "\"\n  fix   separate settings by spaces, as \"lr=1e-3 width=16\"; values with spaces "
                                "are in double quotes: model=\"run 3/unet.pt2\"");
}

std::vector<std::pair<std::string, std::string>> parse_settings(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> settings;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos) refuse_setting(word, "is not of the form key=value", text);
    std::string value = word.substr(equals + 1);
    if (value.rfind('"', 0) == 0) {
      for (char next = 0; value.size() < 2 || value.back() != '"'; value += next) {
        if (!words.get(next)) refuse_setting(word, "has no closing quote", text);
      }
      value = value.substr(1, value.size() - 2);
      if (value.find('"') != std::string::npos) refuse_setting(word, "has a quote within quotes", text);
    }
    settings.emplace_back(word.substr(0, equals), value);
  }
  return settings;
}

/// The same on ranks that read the same.
std::string contents_tag(const std::string& path) {
  if (const std::string reason = unreadable(path); !reason.empty()) return "which cannot be read: " + reason;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return "contents " + std::to_string(fingerprint_of(text.str()));
}

/// Runs `work` on a field of this name; its errors get the name, and what any rank's `note` says of them, so that
/// all ranks end in the same way.
void on_field(Communicator& world, const char* function, const std::string& name, const std::string& ranks_note,
              const std::function<void()>& work) {
  const std::vector<std::string> notes = world.all_gather_strings(ranks_note);
  try {
    work();
  } catch (const c10::ValueError& error) {
    const auto first = std::find_if(notes.begin(), notes.end(), [](const std::string& one) { return !one.empty(); });
    const std::string note = first == notes.end() ? "" : *first;
    throw HostError(MH_USAGE, function + ("('" + name) + "'): " + error.what_without_backtrace() + note);
  }
}

/// At 1: what to run in Lua's protection.
struct Run {
  c10::function_ref<void(lua_State*)> work;
  std::exception_ptr error = nullptr;
};

/// An error with its own status goes around Lua, which supports strings alone.
int run_work(lua_State* lua) {
  auto* run = static_cast<Run*>(lua_touserdata(lua, 1));
  lua_settop(lua, 0);
  try {
    run->work(lua);
  } catch (const HostError&) {
    run->error = std::current_exception();
  } catch (const UsageError&) {
    run->error = std::current_exception();
  }
  return 0;
}

}  // namespace

/// The message of a function that returned too little, or something else.
void HostSession::Results::give(const std::string& function, std::span<double> out) const {
  if (out.size() > numbers.size() && static_cast<size_t>(count) > numbers.size()) {
    throw HostError(MH_SCRIPT, "mh_call: result " + std::to_string(numbers.size() + 1) + " of '" + function +
                                   "' is not a number\n  have  " + other +
                                   "\n  fix   return numbers or tensors of one element");
  }
  if (out.size() > numbers.size()) {
    throw HostError(MH_SCRIPT, "mh_call: '" + function + "' returned " + std::to_string(count) + " values, " +
                                   std::to_string(out.size()) + " are required");
  }
  std::copy_n(numbers.begin(), out.size(), out.begin());
}

Outcome HostSession::check_thread(const std::string& what) const {
  if (thread_ == std::this_thread::get_id()) return {};
  return {MH_USAGE,
          what + ": called from another thread than the one that opened the session\n  fix   call it from that thread"};
}

Outcome HostSession::together(const std::string& what, const std::function<void()>& work) {
  if (const Outcome here = check_thread(what); here.status != MH_OK) return here;
  if (const Outcome idle = check_idle(what); idle.status != MH_OK) return idle;
  return together_here(what, work);
}

/// On a thread that may do it: the session's, or the one that works for it.
Outcome HostSession::together_here(const std::string& what, const std::function<void()>& work) {
  const AsRank rank(*context_);
  if (!ended_.empty())
    return {MH_RANK_LOST,
            what + ": the session has ended before\n  have  " + ended_ + "\n  fix   close it and open another"};
  deadlocked_ranks(*control_);  // forgets those of a session before
  const FailedWaits waits;
  const Outcome mine = attempt(work);
  CommunicatorBackend* const others = world_->size() > 1 ? &backend_of(*world_) : nullptr;
  std::optional<Outcome> stuck = deadlocked_ranks(*control_);
  if (!stuck && mine.status != MH_OK && others != nullptr) others->suspend();
  const Outcome all = stuck ? *stuck : agree_within(waits, what, mine);
  if (all.status == MH_OK) return all;
  if (state_ != nullptr) attempt([&] { run_in_lua(discard_files); });
  if (others != nullptr && all.identical) others->resume();
  if (!all.identical || all.status == MH_RANK_LOST) ended_ = all.text.substr(0, all.text.find('\n'));
  return all;
}

/// A rank that was waited for in vain is not waited for as long again. Where the ranks cannot communicate, this one
/// has ended the session, and those that still run the script are notified.
Outcome HostSession::agree_within(const FailedWaits& waits, const std::string& what, const Outcome& mine) {
  const std::chrono::milliseconds limit = control_->timeout();
  control_->set_timeout(waits.left(limit));
  const Outcome all = agree(*control_, what, mine);
  control_->set_timeout(limit);
  if (!all.agreed) backend_of(*control_).suspend();
  return all;
}

Outcome HostSession::refuse(const std::string& what, const std::string& problem) {
  return together(what, [&] { throw HostError(MH_USAGE, what + ": " + problem); });
}

void HostSession::run_in_lua(c10::function_ref<void(lua_State*)> work) {
  lua_State* lua = state_.get();
  const ScriptWarnings warnings(lua);
  const c10::AutoGradMode gradients(true);  // whatever the host is doing
  Run run{work};
  context(lua).rank_was_lost = false;
  lua_pushcfunction(lua, run_work);
  lua_pushlightuserdata(lua, &run);
  try {
    call_traced(lua, 1, 0);
  } catch (const LuaError& error) {
    if (context(lua).rank_was_lost) throw CommError(error.what());
    throw;
  }
  if (run.error) std::rethrow_exception(run.error);
}

Outcome HostSession::open(const std::string& script, const std::string& settings) {
  const Outcome opened = together("mh_open", [&] { open_state(script, settings); });
  if (link_ == nullptr) return opened;
  if (opened.status == MH_OK) {
    world_ = part_;
    control_ = control_group_;
  } else {
    link_->abandon();
  }
  return opened;
}

void HostSession::open_state(const std::string& script, const std::string& settings) {
  Context context;
  context.world = world_;
  context.script = script;
  context.settings = parse_settings(settings);
  check_same_on_all_ranks(*world_, "mh_open", "settings", settings + (check_finite_ ? ", with check_finite" : ""));
  check_same_on_all_ranks(*world_, "mh_open", "scripts", script + ", " + contents_tag(script));
  state_ = new_state(std::move(context));
  lua_State* lua = state_.get();
  if (budget_ || world_->size() > 1) watch_ = std::make_unique<CallWatch>(lua, control_);
  replace_os_exit(lua);
  RunStart::draw().agreed(*world_).enter(lua, world_->size());
  run_in_lua([&](lua_State* lua) {
    push_module(lua);
    push_embedded(lua, "internal.host", "new");
    push_trainer_functions(lua, this);
    lua_call(lua, 1, 1);
    lua_setfield(lua, -2, "host");
    lua_pop(lua, 1);
    const std::vector<std::string> known = functions(lua);
    known_globals_.insert(known.begin(), known.end());
    forbid_undefined_globals(lua);
    run_script(lua, 0);
    warn_of_unread_settings(lua, "the host's settings");
  });
}

/// Names of the global functions that the script has made.
std::vector<std::string> HostSession::functions(lua_State* lua) const {
  std::vector<std::string> names;
  lua_pushglobaltable(lua);
  for (lua_pushnil(lua); lua_next(lua, -2) != 0; lua_pop(lua, 1)) {
    if (lua_type(lua, -2) != LUA_TSTRING || !is_callable(lua, -1)) continue;
    const std::string name = lua_tostring(lua, -2);
    if (known_globals_.count(name) == 0) names.push_back(name);
  }
  lua_pop(lua, 1);
  std::sort(names.begin(), names.end());
  return names;
}

Outcome HostSession::field(const std::string& name, const std::function<Block()>& make, bool filled,
                           const std::string& note) {
  return together("mh_field", [&] { register_field(name, make, filled, note); });
}

void HostSession::register_field(const std::string& name, const std::function<Block()>& make, bool filled,
                                 const std::string& note) {
  const ScopedStatsPause stats_pause;
  check_same_on_all_ranks(*world_, "mh_field", "fields",
                          "'" + name + (make ? "'" : "' unregistered") + (filled ? " with filled ghosts" : ""));
  if (!make) {
    if (fields_.erase(name) + boxes_.erase(name) == 0) {
      std::vector<std::string> names;
      for (const auto& [known, field] : fields_) names.push_back(known);
      for (const auto& [known, set] : boxes_) names.push_back(known);
      throw HostError(MH_USAGE, "mh_field: no field '" + name + "' is registered" + did_you_mean(name, names));
    }
    set_field(name, {});
    return set_mask(name, {});
  }
  Block block;
  BoxGrid grid;
  on_field(*world_, "mh_field", name, note, [&] {
    fail_together(*world_, [&] { block = make(); });
    grid = gather_grid(block, *world_);
  });
  const MeshPtr mesh = mesh_for(grid);
  std::iota(grid.place.begin(), grid.place.end(), int64_t{0});  // the mesh has its ranks in this order
  const SpecPtr spec = grid.spec_on(mesh);
  const at::Tensor tensor = as_shard_tensor(block, spec);
  set_new_origin(tensor, fingerprint_of(name));
  std::optional<HostHalos> ghosts;
  if (filled) ghosts = host_halos(tensor, block);
  set_field(name, tensor);
  set_mask(name, {});
  fields_[name] = {spec, tensor, ghosts};
  boxes_.erase(name);
}

void HostSession::set_field(const std::string& name, const at::Tensor& tensor) { set_entry("fields", name, tensor); }

/// Without one, host.lua makes that of a field without holes when it is asked for.
void HostSession::set_mask(const std::string& name, const at::Tensor& mask) { set_entry("masks", name, mask); }

/// `table`: fields or masks, of mh.host. An undefined tensor takes the entry out.
void HostSession::set_entry(const char* table, const std::string& name, const at::Tensor& tensor) {
  run_in_lua([&](lua_State* lua) {
    push_module(lua);
    lua_getfield(lua, -1, "host");
    lua_getfield(lua, -1, table);
    push(lua, name);
    push(lua, tensor);
    lua_rawset(lua, -3);
  });
}

Outcome HostSession::boxes(const std::string& name, const std::function<std::vector<Block>()>& make,
                           const std::string& note) {
  return together("mh_boxes", [&] {
    const ScopedStatsPause stats_pause;
    check_same_on_all_ranks(*world_, "mh_boxes", "fields", "'" + name + "'");
    std::vector<Block> mine;
    const auto make_mesh = [this](int64_t ranks) {
      BoxGrid grid{{}, {std::vector<int64_t>(ranks, 1)}, std::vector<int64_t>(ranks)};
      std::iota(grid.place.begin(), grid.place.end(), int64_t{0});
      return mesh_for(grid);
    };
    std::optional<BoxSet> set;
    on_field(*world_, "mh_boxes", name, note, [&] {
      fail_together(*world_, [&] { mine = make(); });
      set.emplace(std::move(mine), *world_, make_mesh);
    });
    set_new_origin(set->field(), fingerprint_of(name));
    set_field(name, set->field());
    set_mask(name, set->owned());
    fields_.erase(name);
    boxes_.insert_or_assign(name, Boxes{std::move(*set), 0});
  });
}

void HostSession::read_boxes() {
  for (auto& [name, boxes] : boxes_) {
    boxes.set.read();
    boxes.version = version_of(*boxes.set.field().unsafeGetTensorImpl());
  }
}

/// Those that the script has written, or views of them: on all ranks.
void HostSession::write_boxes() {
  for (auto& [name, boxes] : boxes_) {
    if (version_of(*boxes.set.field().unsafeGetTensorImpl()) != boxes.version) boxes.set.write();
  }
}

/// Fields that are divided in the same way share a mesh, so that one operator can take them.
MeshPtr HostSession::mesh_for(const BoxGrid& grid) {
  MeshPtr& mesh = meshes_[{grid.mesh_shape(), grid.place}];
  if (mesh != nullptr) return mesh;
  const bool in_order = std::is_sorted(grid.place.begin(), grid.place.end());
  const CommunicatorPtr ordered = in_order ? world_ : world_->split(0, static_cast<int>(grid.place[world_->rank()]));
  return mesh = init_device_mesh(*ordered, "cpu", grid.mesh_shape());
}

Outcome HostSession::call(const std::string& function, std::span<const double> in, std::span<double> out) {
  const std::string what = "mh_call('" + function + "')";
  return together(what, [&] {
    std::vector<HostHalos> filled;
    for (const auto& [name, field] : fields_) {
      if (field.ghosts) filled.push_back(*field.ghosts);
    }
    ++calls_;
    read_boxes();
    check_finite(MH_USAGE, what, "argument", in, /*fields=*/true, "before");
    {
      const UseFilledGhosts ghosts(filled);
      const auto limited = limit_call(what);
      run_in_lua(
          [&](lua_State* lua) { call_function(lua, function, in, static_cast<int>(out.size())).give(function, out); });
    }
    check_finite(MH_SCRIPT, what, "result", out, /*fields=*/true, "after");
    write_boxes();
  });
}

/// Numbers and, where required, fields; an error on all ranks, so that the session goes on.
void HostSession::check_finite(mh_status status, const std::string& what, const char* kind,
                               std::span<const double> numbers, bool fields, const char* when) const {
  if (!check_finite_) return;
  std::string mine = not_finite(kind, numbers);
  if (fields) {
    for (const auto& [name, field] : fields_) {
      if (mine.empty()) mine = not_finite(name, field.tensor);
    }
    for (const auto& [name, boxes] : boxes_) {
      if (mine.empty()) mine = not_finite(name, boxes.set.field());
    }
  }
  refuse_together(*world_, status, what, mine, when + (" call " + std::to_string(calls_)) + " of the session");
}

std::optional<CallWatch::Limited> HostSession::limit_call(const std::string& what) {
  if (!budget_) return std::nullopt;
  return std::optional<CallWatch::Limited>(std::in_place, *watch_, what, budget_);
}

HostSession::Results HostSession::call_function(lua_State* lua, const std::string& name, std::span<const double> in,
                                                int required) {
  lua_pushglobaltable(lua);
  push(lua, name);
  lua_rawget(lua, -2);
  if (!is_callable(lua, -1) || known_globals_.count(name) != 0) {
    const std::vector<std::string> known = functions(lua);
    throw HostError(MH_USAGE, "mh_call: the script has no function '" + name + "'" + did_you_mean(name, known) +
                                  "\n  have  " + (known.empty() ? "no global functions" : c10::Join(", ", known)) +
                                  "\n  fix   define it in the script, without `local`");
  }
  luaL_checkstack(lua, static_cast<int>(in.size()) + 1, "mh_call");
  const int before = lua_gettop(lua) - 1;
  for (const double value : in) lua_pushnumber(lua, value);
  lua_call(lua, static_cast<int>(in.size()), LUA_MULTRET);
  Results results;
  results.count = lua_gettop(lua) - before;
  for (int i = before + 1; i <= before + std::min(results.count, required); ++i) {
    const at::Tensor* tensor = lua_type(lua, i) == LUA_TNUMBER ? nullptr : to_tensor(lua, i);
    if (lua_type(lua, i) == LUA_TNUMBER) {
      results.numbers.push_back(lua_tonumber(lua, i));
    } else if (tensor != nullptr && tensor->numel() == 1 && !tensor->is_complex()) {
      results.numbers.push_back(tensor->item<double>());
    } else {
      results.other = describe(lua, i);
      break;
    }
  }
  return results;
}

void HostSession::call_host(const char* function, const std::string& path) {
  run_in_lua([&](lua_State* lua) {
    push_embedded(lua, "internal.host", function);
    push(lua, path);
    lua_call(lua, 1, 0);
  });
}

Outcome HostSession::save(const std::string& path) {
  return together("mh_save", [&] { call_host("save", path); });
}

Outcome HostSession::load(const std::string& path) {
  return together("mh_load", [&] { call_host("load", path); });
}

Outcome HostSession::sync() {
  return together("mh_sync", [] {});
}

std::string HostSession::report() const {
  const AsRank rank(*context_);
  std::ostringstream text;
  const CommStats::Count sent = world_->stats().total();
  text << "moonhalo " << kVersion << ", rank " << world_->rank() << " of " << world_->size();
  if (world_->size() > 1) text << " over " << world_->backend();
  text << "\nsent  " << sent.bytes << " bytes in " << sent.messages << " messages\n";
  for (const auto& [name, field] : fields_) {
    text << "field " << name << "  " << field.spec->to_string() << ", owned " << shape_string(field.spec->local_shape())

         << " at " << to_local(field.tensor).const_data_ptr() << (field.ghosts ? ", ghosts filled" : "") << "\n";
  }
  for (const auto& [name, boxes] : boxes_) {
    text << "field " << name << "  " << spec(boxes.set.field())->to_string() << ", copied from " << boxes.set.boxes()
         << " boxes of this rank\n";
  }
  if (!ended_.empty()) text << "ended " << ended_ << "\n";
  return text.str();
}

}  // namespace moonhalo::scripting
