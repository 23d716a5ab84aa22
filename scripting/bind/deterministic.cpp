// SPDX-License-Identifier: Apache-2.0
// Operators whose results differ from run to run are refused.
#include <ATen/Context.h>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
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
///     local before = mh.use_deterministic(true)
///     before, mh.use_deterministic(before)    --> false  true
int use_deterministic(lua_State* lua) {
  const bool on = check_bool(lua, 1);
  at::Context& global = at::globalContext();
  push(lua, global.deterministicAlgorithms());
  global.setDeterministicAlgorithms(on, /*warn_only=*/false);
  global.setDeterministicCuDNN(on);
  if (on) global.setBenchmarkCuDNN(false);
  return 1;
}

const luaL_Reg kDeterministic[] = {{"use_deterministic", guard<use_deterministic>}, {nullptr, nullptr}};

const Binding deterministic_binding{"deterministic", [](lua_State* lua) { add_functions(lua, kDeterministic); }};

}  // namespace
}  // namespace moonhalo::scripting
