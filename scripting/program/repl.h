// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>
#include <vector>

#include "moonhalo/scripting/program/rank_board.h"

namespace moonhalo::scripting {

/// Reads chunks on rank 0 and runs them on every rank until the input ends. Expressions are printed
/// (by rank 0); errors are printed and do not end it; an interrupt stops the running chunk.
void run_repl(lua_State* lua, RankBoard& board);

/// Loads one line, or several, as an expression list if it is one, else as statements; pushes the function. Returns
/// "" when done, else the syntax error; `incomplete` is true if more lines may complete it.
std::string load_chunk(lua_State* lua, const std::string& text, bool& incomplete);

/// Lists what may follow `text`, whose last word is a path such as `mh.ran` or `x:sq`: whole words,
/// sorted.
std::vector<std::string> complete_word(lua_State* lua, const std::string& text);

}  // namespace moonhalo::scripting
