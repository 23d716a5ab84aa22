// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/session.h"

#include <ATen/Parallel.h>
#include <c10/util/ScopeExit.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "moonhalo/engine/comm/device/device_link.h"
#include "moonhalo/engine/comm/device/device_watch.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/comm/diagnostics/process_exit.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/io/base/io_context.h"
#include "moonhalo/scripting/bind/h5.h"
#include "moonhalo/scripting/bind/run.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/devices.h"
#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/syntax_hints.h"
#include "moonhalo/scripting/core/warnings.h"
#include "moonhalo/scripting/program/one_of.h"
#include "moonhalo/scripting/program/output.h"
#include "moonhalo/scripting/program/report.h"
#include "moonhalo/scripting/program/run_start.h"
#include "moonhalo/scripting/program/written_files.h"

namespace moonhalo::scripting {

namespace {

constexpr std::chrono::seconds kStopWithin{5};
// After os.exit with another status than 0 the other ranks of this process have so long to come to their end.
constexpr std::chrono::seconds kLeaveWithin{2};

RunStart draw_start(const std::string& log_file) {
  RunStart start = RunStart::draw();
  if (log_file.empty()) return start;
  std::FILE* file = std::fopen(log_file.c_str(), "a");
  start.log_error = file ? 0 : errno;
  if (file) std::fclose(file);
  return start;
}

/// One run on the ranks of this process.
class Session {
 public:
  Session(const SessionOptions& options, const std::function<void(lua_State*)>& body)
      : options_(options), body_(body) {}
  ~Session() { end_watch(); }

  int run();

 private:
  void run_fake_ranks();
  Context make_context(CommunicatorPtr world, bool threads) const;
  void check_log() const;
  void run_rank(CommunicatorPtr world, bool threads);
  void leave(Communicator& world, int status);
  void fail(Communicator& world, const LuaError& error, bool secondary);
  void watch(std::chrono::seconds grace);
  void end_watch();
  int status() const;
  void print_report();

  const SessionOptions& options_;
  const std::function<void(lua_State*)>& body_;
  int64_t world_size_ = 1;
  Launch launch_;
  RunStart start_;
  ErrorReport report_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> exit_code_ = 0;
  std::atomic<bool> printed_ = false;
  WrittenFiles written_;

  std::mutex watch_mutex_;
  std::condition_variable watch_ended_;
  bool ended_ = false;
  bool alarmed_ = false;
  std::thread watcher_;
};

const char kSessionKey = 0;

/// Ranks that compute in Lua call no collective that could stop them.
void stop_hook(lua_State* lua, lua_Debug*) {
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kSessionKey);
  const auto* stop = static_cast<const std::atomic<bool>*>(lua_touserdata(lua, -1));
  lua_pop(lua, 1);
  if (!*stop) return;
  context(lua).rank_was_lost = true;
  luaL_error(lua, "stopped, because another rank failed");
}

/// Puts what print shows of a value on the stack: the contents of a table that has no text of its own.
const char* push_text(lua_State* lua, int index, size_t& length) {
  if (!lua_istable(lua, index)) return luaL_tolstring(lua, index, &length);
  if (luaL_getmetafield(lua, index, "__tostring") != LUA_TNIL) {
    lua_pop(lua, 1);
    return luaL_tolstring(lua, index, &length);
  }
  push_embedded(lua, "internal.table_text");
  lua_pushvalue(lua, index);
  lua_call(lua, 1, 1);
  return lua_tolstring(lua, -1, &length);
}

/// One write per line, so that the lines of thread ranks do not mix.
int print_line(lua_State* lua) {
  std::string line;
  const int count = lua_gettop(lua);
  for (int i = 1; i <= count; ++i) {
    size_t length = 0;
    const char* text = push_text(lua, i, length);
    if (i > 1) line += '\t';
    line.append(text, length);
    lua_pop(lua, 1);
  }
  line += '\n';
  write_output(line);
  copy_output(lua, line);
  return 0;
}

/// The device of this rank, which becomes that of its thread. Collective.
c10::Device device_of(const std::string& name, Communicator& world) {
  const auto required = parse_device(name);
  if (!required || required->is_meta()) throw UsageError("--device: '" + name + "' is neither cpu nor cuda");
  try {
    if (world.is_fake()) return present(*required);
    const c10::Device device = device_of_rank(world, present(*required));
    use_device(device);
    return device;
  } catch (const c10::ValueError& error) {
    throw UsageError(std::string("--device: ") + error.what_without_backtrace());
  }
}

Context Session::make_context(CommunicatorPtr world, bool threads) const {
  Context context;
  context.device = device_of(options_.device, *world);
  context.world = std::move(world);
  context.ranks_are_threads = threads;
  context.script = options_.script;
  context.arguments = options_.arguments;
  context.config_files = options_.config_files;
  context.log_file = options_.log_file;
  context.run_name = options_.run_name;
  context.resume = options_.resume;
  context.quiet = options_.quiet;
  context.shows_searches = !options_.quiet || options_.shows_searches;
  for (const std::string& setting : options_.settings) {
    const size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw UsageError("--set: '" + setting + "' is not of the form key=value");
    }
    context.settings.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return context;
}

/// Before the script computes for hours and has nowhere to write.
void Session::check_log() const {
  if (start_.log_error == 0) return;
  throw UsageError("--log: cannot write '" + options_.log_file +
                   "': " + std::strerror(static_cast<int>(start_.log_error)));
}

void report_unwritten() {
  const io::Unwritten& left_out = io::io_context->unwritten;
  if (left_out.files > 0)
    std::fprintf(stderr, "moonhalo: a dry run writes no files: left out %lld of %lld bytes\n",
                 static_cast<long long>(left_out.files), static_cast<long long>(left_out.bytes));
}

/// Prints the memory and messages of the rank, after the last line of the script.
void print_costs(const Communicator& world) {
  constexpr double kMegabyte = 1e6;
  const CommStats::Count sent = world.stats().total();
  std::printf("rank %d of %d: %.1f MB of tensors at the peak, %lld messages with %.3f MB sent\n", world.rank(),
              world.size(), static_cast<double>(memory_use().peak) / kMegabyte, static_cast<long long>(sent.messages),
              static_cast<double>(sent.bytes) / kMegabyte);
}

void Session::run_rank(CommunicatorPtr world, bool threads) {
  Communicator& communicator = *world;
  set_device_link(is_device_link(options_.backend) ? options_.backend : "");
  if (options_.timeout) communicator.set_timeout(*options_.timeout);
  const auto state = new_state(make_context(std::move(world), threads));
  lua_State* lua = state.get();
  lua_pushlightuserdata(lua, &stop_);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kSessionKey);
  lua_register(lua, "print", guard<print_line>);
  replace_os_exit(lua);
  if (communicator.size() > 1 && !communicator.is_fake()) written_.watch(lua);
  start_.enter(lua, communicator.size());
  const ScriptWarnings warnings(lua);
  if (threads) lua_sethook(lua, stop_hook, LUA_MASKCOUNT, 100000);
  try {
    std::optional<FakeResults> nothing_computed;
    if (options_.fake_tensors) nothing_computed.emplace();
    body_(lua);
    const bool reports = communicator.is_fake() && options_.fake_ranks.empty();
    if (reports) report_unwritten();
    if (reports && options_.fake_tensors) print_costs(communicator);
  } catch (const UsageError&) {
    throw;
  } catch (const ScriptExit& exit) {
    // A status of failure: what was being written may be half of it.
    if (exit.status() != 0) discard_files(lua);
    leave(communicator, exit.status());
  } catch (const std::exception& error) {
    discard_files(lua);
    const auto* known = dynamic_cast<const LuaError*>(&error);
    fail(communicator, known ? *known : LuaError(plain_message(error)), follows_from_another_rank(lua, error));
  }
}

/// The process ends when all its ranks have. Those that work on after one has failed are given a moment; those that
/// wait for it are notified.
void Session::leave(Communicator& world, int status) {
  if (status > exit_code_) exit_code_ = status;
  if (status != 0 && world.size() > 1 && launch_.size == 1) watch(kLeaveWithin);
}

void Session::fail(Communicator& world, const LuaError& error, bool secondary) {
  const std::string message = error.what();
  report_.add(world.rank(), error, secondary);
  stop_ = true;
  // Another process's abort may end this one at once: say what happened first.
  if (launch_.size > 1) print_report();
  watch(std::chrono::seconds(0));
  if (world.size() > 1 && !world.is_fake()) {
    backend_of(world).abort_with_status(
        "rank " + std::to_string(world.rank()) + " failed: " + message.substr(0, message.find('\n')),
        secondary ? kRankLost : kScriptFailed);
  }
}

/// After `grace` ranks are to stop. One inside a long computation is not notified: after a while the process ends
/// without it.
void Session::watch(std::chrono::seconds grace) {
  const std::lock_guard lock(watch_mutex_);
  if (watcher_.joinable()) return;
  try {
    watcher_ = std::thread([this, grace] {
      std::unique_lock waiting(watch_mutex_);
      if (watch_ended_.wait_for(waiting, grace, [this] { return ended_; })) return;
      stop_ = true;
      if (watch_ended_.wait_for(waiting, kStopWithin, [this] { return ended_; })) return;
      print_report();
      std::fflush(nullptr);
      std::_Exit(status());
    });
  } catch (const std::system_error&) {
    // The process is short of memory or threads: what is known is said now, and an alarm does what the thread would.
    stop_ = true;
    print_report();
    std::signal(SIGALRM, [](int) { std::_Exit(kScriptFailed); });
    alarm(static_cast<unsigned>(kStopWithin.count()));
    alarmed_ = true;
  }
}

void Session::end_watch() {
  {
    const std::lock_guard lock(watch_mutex_);
    ended_ = true;
  }
  watch_ended_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (alarmed_) alarm(0);
}

int Session::status() const {
  if (report_.empty() || (exit_code_ != 0 && report_.only_secondary())) return exit_code_;
  return report_.only_secondary() ? kRankLost : kScriptFailed;
}

/// Once: what other ranks say later follows from it.
void Session::print_report() {
  if (printed_.exchange(true)) return;
  const std::string text = report_.text(world_size_);
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// Errors in what was asked for are the caller's, not the script's.
CommunicatorPtr make_process_world(const std::string& backend, const Launch& launch) {
  try {
    return make_world(backend, launch);
  } catch (const c10::ValueError& error) {
    throw UsageError(plain_message(error));
  } catch (const c10::NotImplementedError& error) {
    throw UsageError(plain_message(error));
  }
}

void check_time_limit() {
  try {
    default_time_limit();
  } catch (const c10::ValueError& error) {
    throw UsageError(plain_message(error));
  }
}

/// The ranks of this process wait for a device that never answers.
void end_with_hung_device(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "moonhalo: %s\n", why.c_str());
  std::fflush(stderr);
  std::_Exit(kRankLost);
}

void check_dry_run(const SessionOptions& options) {
  if (options.backend == "fake" && !options.run_name.empty())
    throw UsageError("--run: a dry run writes no files\n  have  --backend fake\n  fix   leave --run and --resume out");
  if (options.fake_rank < 0) return;
  const std::string given = "--fake-rank " + std::to_string(options.fake_rank);
  if (options.backend != "fake")
    throw UsageError(given + ": it is the rank of a dry run\n  have  " +
                     (options.backend.empty() ? "no --backend" : "--backend " + options.backend) +
                     "\n  fix   add --backend fake, or leave --fake-rank out");
  if (options.fake_rank >= std::max(1, options.ranks))
    throw UsageError(given + ": ranks count from 0\n  have  --ranks " + std::to_string(std::max(1, options.ranks)) +
                     "\n  fix   give a rank below it");
}

void Session::run_fake_ranks() {
  const auto facts = options_.root_facts ? options_.root_facts : std::make_shared<RootFacts>();
  facts->begin(options_.fake_ranks);
  // As many threads of LibTorch as a real rank would have: its kernels take memory for each of them.
  const int sharing = launch_.size > 1 ? 1 : std::max(1, options_.ranks);
  const auto run_one = [&](Communicator& threads) {
    const int64_t rank = options_.fake_ranks[threads.rank()];
    const auto at_end = c10::make_scope_exit([&] { facts->end(rank); });
    run_rank(make_fake_communicator(static_cast<int>(rank), options_.ranks, facts, options_.simulated), true);
  };
  run_ranks(static_cast<int>(options_.fake_ranks.size()), run_one, std::max(1, at::get_num_threads() / sharing));
}

int Session::run() {
  const MemoryCount memory;
  launch_ = detect_launch();
  const DefaultTimeLimit limit(options_.timeout);
  check_time_limit();
  check_dry_run(options_);
  const bool of_devices = is_device_link(options_.backend);
  if (of_devices && options_.device == "cpu")
    throw UsageError("--backend " + options_.backend + ": it is for tensors of devices\n  have  --device cpu" +
                     "\n  fix   add --device cuda, or leave --backend out");
  const std::string backend = of_devices ? "" : options_.backend;
  if (options_.fake_tensors && backend != "fake")
    throw UsageError("--fake-tensors: other ranks would wait for values that are not computed\n  have  --backend " +
                     (options_.backend.empty() ? "not given" : options_.backend) +
                     "\n  fix   add --backend fake, and --ranks N for one rank of N");
  set_hung_device_hook(end_with_hung_device);
  start_ = draw_start(launch_.rank == 0 && backend != "fake" ? options_.log_file : "");
  if (launch_.size == 1) check_log();
  if (backend == "fake" && !options_.fake_ranks.empty()) {
    world_size_ = options_.ranks;
    run_fake_ranks();
  } else if (backend == "fake") {
    world_size_ = std::max(1, options_.ranks);
    run_rank(make_fake_communicator(std::max(0, options_.fake_rank), std::max(1, options_.ranks)), false);
  } else if (launch_.size == 1 && options_.ranks > 1 && (backend.empty() || backend == "threads")) {
    world_size_ = options_.ranks;
    run_ranks(options_.ranks, [&](Communicator& world) { run_rank(world.shared_from_this(), true); });
  } else {
    if (options_.ranks > 0 && options_.ranks != launch_.size) {
      throw UsageError("--ranks " + std::to_string(options_.ranks) + ": this process is one of " +
                       std::to_string(launch_.size) + "\n  have  " + launch_.why +
                       "\n  fix   leave --ranks out under a launcher; without one use --backend threads");
    }
    CommunicatorPtr world = make_process_world(backend, launch_);
    world_size_ = world->size();
    start_ = start_.agreed(*world);
    check_log();
    run_rank(std::move(world), false);
  }
  end_watch();
  // Processes print before they abort each other.
  if (!report_.empty() && (world_size_ == 1 || launch_.size == 1)) print_report();
  return status();
}

}  // namespace

void add_ranks_option(CLI::App& app, int& ranks, const std::string& description) {
  app.add_option("--ranks", ranks, description)
      ->check(CLI::Validator(
          [](std::string& text) {
            const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
            const bool fits = number && text.size() < 10 && std::stoi(text) > 0;
            return fits ? std::string() : "'" + text + "' is not a number of ranks; allowed are 1, 2, 3, ...";
          },
          ""));
}

void add_rank_options(CLI::App& app, SessionOptions& options) {
  add_ranks_option(app, options.ranks, "Number of ranks; under mpirun, srun or torchrun they give it");
  app.add_option("--fake-rank", options.fake_rank, "With --backend fake: the rank that runs (default: 0)")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
         "--backend", options.backend,
         "How ranks communicate (default: what the launcher gives, else threads; nccl or staged: how devices do)")
      ->check(one_of({"threads", "mpi", "tcp", "nccl", "staged", "fake"}));
  app.add_option("--device", options.device, "cpu (default) or cuda");
}

void add_timeout_option(CLI::App& app, SessionOptions& options) {
  const auto set = [&options](const std::string& text) {
    options.timeout = parse_time_limit(text);
    if (!options.timeout)
      throw CLI::ValidationError("--timeout", "'" + text + "' is not a number of seconds from 0.001 to 1e9");
  };
  app.add_option_function<std::string>(
         "--timeout", set,
         "Longest silence of a rank in seconds before the others give up (default: MOONHALO_TIMEOUT_S, else 600)")
      ->type_name("SECONDS");
}

int run_session(const SessionOptions& options, const std::function<void(lua_State*)>& body) {
  return Session(options, body).run();
}

std::string unreadable(const std::string& path) {
  if (::access(path.c_str(), R_OK) != 0) return std::strerror(errno);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return std::strerror(EISDIR);
  return std::filesystem::is_regular_file(path, error) ? "" : "not a regular file";
}

void run_script(lua_State* lua, int results) {
  const Context& run = context(lua);
  if (const std::string reason = unreadable(run.script); !reason.empty()) {
    throw UsageError("cannot read the script '" + run.script + "'\n  have  " + reason +
                     "\n  fix   give the path of a Lua file; one that does not begin with / starts at " +
                     std::filesystem::current_path().string());
  }
  if (luaL_loadfilex(lua, run.script.c_str(), "t") != LUA_OK) {
    const std::string message = with_whole_path(lua_tostring(lua, -1), ("@" + run.script).c_str());
    lua_pop(lua, 1);
    throw LuaError(message + syntax_hint(message, source_line(message)));
  }
  for (const std::string& argument : run.arguments) push(lua, argument);
  call_traced(lua, static_cast<int>(run.arguments.size()), results);
}

bool follows_from_another_rank(lua_State* lua, const std::exception& error) {
  return context(lua).rank_was_lost || dynamic_cast<const CommError*>(&error) != nullptr;
}

void warn_of_unread_settings(lua_State* lua, const char* given) {
  const Context& run = context(lua);
  if (run.rank() != 0 || (run.settings.empty() && run.config_files.empty())) return;
  luaL_getsubtable(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  const bool read = lua_getfield(lua, -1, "moonhalo.config") != LUA_TNIL;
  lua_pop(lua, 2);
  if (read) return;
  std::fprintf(stderr, "moonhalo: %s had no effect: %s does not call mh.config\n", given, run.script.c_str());
}

}  // namespace moonhalo::scripting
