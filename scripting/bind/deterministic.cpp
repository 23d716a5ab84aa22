// SPDX-License-Identifier: Apache-2.0
// Operators whose results differ from run to run are refused.
#include <ATen/Context.h>

#include "moonhalo/scripting/bind/deterministic.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

void set_deterministic(bool on, bool warn_only) {
  at::Context& global = at::globalContext();
  global.setDeterministicAlgorithms(on, warn_only);
  global.setDeterministicCuDNN(on);
  if (on) global.setBenchmarkCuDNN(false);
}

namespace {

/// mh.use_deterministic(on) -> boolean
///   Makes LibTorch take algorithms whose results have the same bits in every run, and refuse, by name, operators that
///   have none. It concerns GPUs: on CPUs runs with as many ranks have the same bits anyway. Draws do not depend on the
///   number of ranks, sums do to rounding.
///   on          boolean     true or false, on all ranks: ranks that are threads share the setting
///   returns     boolean     what was set before
///   collective  no
///   errors      TypeError: on is not a boolean
///   example
///     mh.use_deterministic(true)
///     mh.barrier()
///     mh.use_deterministic(true)    --> true
///     mh.barrier()
///     mh.use_deterministic(false)
int use_deterministic(lua_State* lua) {
  const bool on = check_bool(lua, 1);
  push(lua, at::globalContext().deterministicAlgorithms());
  set_deterministic(on, /*warn_only=*/false);
  return 1;
}

/// mh.use_deterministic_algorithms(mode, {warn_only = false}) -> nothing
///   As mh.use_deterministic, with PyTorch's name and option.
///   mode        boolean     true or false, on all ranks: ranks that are threads share the setting
///   warn_only   boolean     a warning in place of the error of an operator that has no such algorithm
///   returns     nothing
///   collective  no
///   errors      TypeError: mode is not a boolean
///   example
///     mh.use_deterministic_algorithms(false)
///     mh.are_deterministic_algorithms_enabled()    --> false
int use_deterministic_algorithms(lua_State* lua) {
  const bool on = check_bool(lua, 1);
  const Options options(lua, 2, "use_deterministic_algorithms", {"warn_only"});
  set_deterministic(on, options.get_bool("warn_only", false));
  return 0;
}

/// mh.are_deterministic_algorithms_enabled() -> boolean
///   Whether mh.use_deterministic(true) is in force.
///   returns     boolean     false at the start, unless moonhalo run has --deterministic
///   collective  no
///   example
///     mh.use_deterministic(true)
///     mh.barrier()
///     mh.are_deterministic_algorithms_enabled()    --> true
///     mh.barrier()
///     mh.use_deterministic(false)
int are_deterministic_algorithms_enabled(lua_State* lua) {
  push(lua, at::globalContext().deterministicAlgorithms());
  return 1;
}

/// mh.is_deterministic_algorithms_warn_only_enabled() -> boolean
///   Whether operators without a deterministic algorithm warn only.
///   returns     boolean     false at the start
///   collective  no
///   example
///     mh.is_deterministic_algorithms_warn_only_enabled()    --> false
int is_deterministic_algorithms_warn_only_enabled(lua_State* lua) {
  push(lua, at::globalContext().deterministicAlgorithmsWarnOnly());
  return 1;
}

const luaL_Reg kDeterministic[] = {
    {"use_deterministic", guard<use_deterministic>},
    {"use_deterministic_algorithms", guard<use_deterministic_algorithms>},
    {"are_deterministic_algorithms_enabled", guard<are_deterministic_algorithms_enabled>},
    {"is_deterministic_algorithms_warn_only_enabled", guard<is_deterministic_algorithms_warn_only_enabled>},
    {nullptr, nullptr}};

const Binding deterministic_binding{"deterministic", [](lua_State* lua) { add_functions(lua, kDeterministic); }};

}  // namespace
}  // namespace moonhalo::scripting
