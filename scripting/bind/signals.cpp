// SPDX-License-Identifier: Apache-2.0
// Signals by which launchers announce the end of a job, for a script that saves first.
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>

#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

/// In the order of their weight: of several signals the last one here counts.
enum SignalState : int64_t { kNoSignal, kUser1, kTerminate, kHandledByProgram };

std::atomic<int> signal_come = kNoSignal;
static_assert(std::atomic<int>::is_always_lock_free);  // a handler may do no more

void note_signal(int number) {
  if (number == SIGTERM) {
    signal_come = kTerminate;
  } else {
    int none = kNoSignal;
    signal_come.compare_exchange_strong(none, kUser1);
  }
}

/// While one exists, SIGTERM and SIGUSR1 are noted in this process; then they do again what they did before. A handler
/// of the program's own is left alone: `taken`.
class SignalWatch {
 public:
  SignalWatch() {
    signal_come = kNoSignal;
    for (Handled& one : handled_) {
      check(sigaction(one.number, nullptr, &one.before));
      taken_ = taken_ || (one.before.sa_flags & SA_SIGINFO) != 0 ||
               (one.before.sa_handler != SIG_DFL && one.before.sa_handler != SIG_IGN);
    }
    if (taken_) return;
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    for (const Handled& one : handled_) check(sigaction(one.number, &action, nullptr));
  }
  ~SignalWatch() {
    if (taken_) return;
    for (const Handled& one : handled_) sigaction(one.number, &one.before, nullptr);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  SignalState state() const { return taken_ ? kHandledByProgram : static_cast<SignalState>(signal_come.load()); }

  /// The one of this process, for all its ranks.
  static std::shared_ptr<SignalWatch> shared() {
    static std::mutex mutex;
    static std::weak_ptr<SignalWatch> current;
    const std::lock_guard lock(mutex);
    std::shared_ptr<SignalWatch> watch = current.lock();
    if (!watch) current = watch = std::make_shared<SignalWatch>();
    return watch;
  }

 private:
  struct Handled {
    int number;
    struct sigaction before;
  };
  static void check(int result) { TORCH_CHECK(result == 0, "signalled: cannot watch signals: ", std::strerror(errno)); }

  Handled handled_[2] = {{SIGTERM, {}}, {SIGUSR1, {}}};
  bool taken_ = false;
};

const char kSignalWatchKey = 0;

const SignalWatch& watch_of(lua_State* lua) {
  using Held = std::shared_ptr<SignalWatch>;
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kSignalWatchKey) == LUA_TNIL) {
    Held watch = SignalWatch::shared();
    new (lua_newuserdatauv(lua, sizeof(Held), 0)) Held(std::move(watch));
    lua_createtable(lua, 0, 1);
    lua_pushcfunction(lua, [](lua_State* state) {
      static_cast<Held*>(lua_touserdata(state, 1))->~Held();
      return 0;
    });
    lua_setfield(lua, -2, "__gc");
    lua_setmetatable(lua, -2);
    lua_pushvalue(lua, -1);
    lua_rawsetp(lua, LUA_REGISTRYINDEX, &kSignalWatchKey);
    lua_remove(lua, -2);
  }
  const SignalWatch& watch = **static_cast<Held*>(lua_touserdata(lua, -1));
  lua_pop(lua, 1);
  return watch;
}

/// mh.signalled() -> string?
///   The signal that any process of the run has received since the first call, the same on all ranks, for a script that
///   saves and ends. SIGTERM has priority over SIGUSR1, and neither is forgotten. From the first call on these signals
///   no longer end the process.
///   returns     "SIGUSR1"|"SIGTERM"?   nil if there was none
///   collective  over all ranks: one sum of 8 bytes
///   errors      RuntimeError: the program around the script has a handler of its own
///   example
///     mh.signalled()    --> nil
int signalled(lua_State* lua) {
  at::Tensor come = at::full({1}, static_cast<int64_t>(watch_of(lua).state()), at::kLong);
  {
    const auto describe = [] { return std::string("mh.signalled"); };
    const CallScope scope(fingerprint_of("mh.signalled"), "mh.signalled", describe);
    context(lua).world->all_reduce(come, ReduceOp::kMax);
  }
  const auto state = come.item<int64_t>();
  TORCH_CHECK(state != kHandledByProgram,
              "signalled: the program around this script handles SIGTERM or SIGUSR1 itself"
              "\n  fix   let the program say that it is to end, by an argument of the call or a value of mh.host");
  if (state == kNoSignal) {
    lua_pushnil(lua);
  } else {
    push(lua, state == kTerminate ? "SIGTERM" : "SIGUSR1");
  }
  return 1;
}

const luaL_Reg kSignalFunctions[] = {{"signalled", guard<signalled>}, {nullptr, nullptr}};

const Binding signals_binding{"signals", [](lua_State* lua) { add_functions(lua, kSignalFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
