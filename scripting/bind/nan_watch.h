// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <lua.hpp>

#include <string>

namespace moonhalo::scripting {

/// Looks for NaN in the results of modules and operators of this rank, and lets autograd look at those of backward
/// functions; until the state is closed. Returns whether it did so before. Not collective.
bool set_detect_nan(lua_State* lua, bool on);

/// "\n  of    aten::sqrt at train.lua:14": the forward call of the backward function that ran last, for LibTorch's
/// message that it returned NaN; "" for other messages, and where it is not known.
std::string place_of_backward(const std::string& message);

/// While backward runs: leaves out what LibTorch warns of beside its error about NaN, which place_of_backward says in
/// words of the script.
class BackwardWarnings final : public c10::WarningHandler {
 public:
  BackwardWarnings() : before_(c10::WarningUtils::get_warning_handler()), guard_(this) {}
  void process(const c10::Warning& warning) override;

 private:
  c10::WarningHandler* before_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace moonhalo::scripting
