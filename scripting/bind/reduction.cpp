// SPDX-License-Identifier: Apache-2.0
// Sets the order in which ranks' numbers are added.
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

/// mh.set_reduction(how) -> string
///   The order in which numbers of ranks are added. "ordered" adds them along one tree, which gives the same bits on
///   every backend; "fast" leaves the order of sums, averages and products on GPUs to NCCL. Other backends are always
///   ordered.
///   how         "fast"|"ordered"   "fast" at the start
///   returns     "fast"|"ordered"   the setting before
///   collective  over all ranks
///   errors      ValueError: another word, or ranks give different ones
///   example
///     mh.set_reduction("ordered"), mh.set_reduction("fast")    --> fast  ordered
int set_reduction(lua_State* lua) {
  const std::string how = check_string(lua, 1);
  TORCH_CHECK_VALUE(how == "ordered" || how == "fast", "set_reduction: unknown name \"", how, "\"\n  have  \"", how,
                    "\"\n  fix   use \"ordered\" or \"fast\"");
  {
    const ScopedStatsPause check;
    check_same_on_all_ranks(*context(lua).world, "set_reduction", "orders", how);
  }
  push(lua, set_ordered_reductions(how == "ordered") ? "ordered" : "fast");
  return 1;
}

const luaL_Reg kReductionFunctions[] = {{"set_reduction", guard<set_reduction>}, {nullptr, nullptr}};

const Binding reduction_binding{"reduction", [](lua_State* lua) { add_functions(lua, kReductionFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
