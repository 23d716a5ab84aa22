// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/syntax_hints.h"

#include <string_view>

namespace moonhalo::scripting {

namespace {

struct Hint {
  std::string_view said;     ///< by Lua
  std::string_view written;  ///< in the line
  std::string_view fix;
};

/// The first that fits counts.
constexpr Hint kHints[] = {
    {"']' expected near ','", "[",
     "Lua takes one index in brackets: x[\"0, 1\"] for the element (0, 1), x[\":, 1\"] for a column"},
    {"near ':'", "[", "slices are strings: x[\"0:2\"], x[\":, 1\"]"},
    {"syntax error near '+'", "+=", "Lua has no +=: write a = a + b"},
    {"syntax error near '-'", "-=", "Lua has no -=: write a = a - b"},
    {"syntax error near '*'", "*=", "Lua has no *=: write a = a * b"},
    {"syntax error near '/'", "/=", "Lua has no /=: write a = a / b"},
    {"syntax error near '+'", "++", "Lua has no ++: write a = a + 1"},
    {"near '!'", "!=", "unequal is ~= in Lua"},
    {"near '!'", "!", "not is a word in Lua: not a"},
    {"near '&'", "&&", "Lua's words are and, or, not"},
    {"near '|'", "||", "Lua's words are and, or, not"},
    {"near '#'", "#", "comments begin with -- in Lua"},
    {"')' expected near '='", "(", "named arguments stand in a last table: f(x, {dim = 0})"},
    {"'}' expected near ':'", "{", "a table is written {name = value} in Lua"},
};

}  // namespace

std::string syntax_hint(const std::string& message, const std::string& line) {
  for (const Hint& hint : kHints) {
    if (message.find(hint.said) == std::string::npos || line.find(hint.written) == std::string::npos) continue;
    return std::string("\n  fix   ").append(hint.fix);
  }
  return "";
}

}  // namespace moonhalo::scripting
