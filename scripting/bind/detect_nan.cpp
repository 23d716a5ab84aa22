// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/bind/nan_watch.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {
namespace {

/// mh.detect_nan(on = true) -> boolean
///   Looks for NaN from here on: in the results of each module on this rank, which makes calls slower, and in those of
///   backward functions. The error names the module, the operator that made NaN of numbers, the script's lines, how
///   many elements are NaN, and the first index of the whole tensor; in backward the module and the line of the forward
///   call. Nothing is sent in forward: a rank that has no NaN gets the error of the others.
///   on          boolean     false looks no more
///   returns     boolean     whether it was on before
///   collective  no, but all ranks must set the same
///   example
///     mh.detect_nan(true)
///     local Root = nn.Module:extend("Root")
///     function Root:forward(x) return mh.sqrt(x) end
///     local found, message = pcall(Root(), mh.tensor{1.0, -1.0})
///     found, message:match("NaN made by aten::sqrt") ~= nil    --> false  true
///     mh.detect_nan(false)    --> true
int detect_nan(lua_State* lua) {
  push(lua, set_detect_nan(lua, is_nil(lua, 1) || check_bool(lua, 1)));
  return 1;
}

const luaL_Reg kDetectNanFunctions[] = {{"detect_nan", guard<detect_nan>}, {nullptr, nullptr}};

const Binding detect_nan_binding{"detect_nan", [](lua_State* lua) { add_functions(lua, kDetectNanFunctions); }};

}  // namespace
}  // namespace moonhalo::scripting
