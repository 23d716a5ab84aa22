// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/syntax_hints.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "moonhalo/engine/base/text.h"

namespace moonhalo::scripting {

namespace {

struct Hint {
  std::string_view said;     ///< by Lua
  std::string_view written;  ///< in the line; with a ^ in front: its first word
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
    {"near '*'", "**", "a power is a ^ b in Lua, of tensors too"},
    {"near '@'", "@", "matrices are multiplied by a:matmul(b)"},
    {"near '?'", "?", "Lua has no a ? b : c: write a and b or c, where b is neither nil nor false"},
    {"'then' expected near '='", "", "equal is == in Lua"},
    {"'then' expected near ':'", "", "write if condition then ... end"},
    {"'do' expected near ':'", "", "write for i = first, last do ... end, while condition do ... end"},
    {"'then' expected near 'is'", "", "write x == nil, x ~= nil"},
    {"'then' expected near 'in'", "", "Lua has no in: look at each element, or keep a table {key = true}"},
    {"'end' expected near ", "return", "return is the last statement of its block: write do return value end"},
    {"syntax error near ", "continue", "Lua has no continue: goto next, and ::next:: at the end of the loop"},
    {"syntax error near ", "^def", "write function name(x) ... end"},
    {"syntax error near ", "^import", "write local mh = require \"moonhalo\""},
    {"syntax error near ", "^from", "write local mh = require \"moonhalo\", local nn = mh.nn"},
    {"syntax error near ", "^class", "write local Net = mh.nn.Module:extend(\"Net\"), function Net:forward(x) ... end"},
    {"syntax error near ", "^with",
     "a block is a function: mh.no_grad(function() ... end), mh.autocast(dtype, function() ... end)"},
    {"syntax error near ", "^elif", "write elseif condition then"},
    {"syntax error near ", "^try", "write local good, result = pcall(function() ... end)"},
    {"syntax error near ", "^raise", "write error(\"what is wrong\")"},
    {"syntax error near ", "^assert", "write assert(condition, \"what is wrong\")"},
    {"syntax error near ", "^print", "write print(x)"},
    {"'end' expected (to close ", "", "every function, if, for and while needs an end of its own; elseif is one word"},
    {"'end' expected near <eof>", "", "every function, if, for and while needs an end of its own; elseif is one word"},
    {"')' expected near '='", "(", "give named arguments in a table behind the others: f(x, {dim = 0})"},
    {"'}' expected near ':'", "{", "a table is written {name = value} in Lua"},
};

/// Words with which a statement begins.
const std::vector<std::string> kKeywords = {"local", "function", "return", "while", "repeat", "goto", "break"};

/// The line may come as it is shown, "\n  3 | def f(x):".
std::string first_word(std::string line) {
  const size_t bar = line.find(" | ");
  if (bar != std::string::npos && line.find_first_not_of(" \n0123456789") == bar + 1) line.erase(0, bar + 3);
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  const auto begin = std::find_if(line.begin(), line.end(), is_letter);
  return {begin, std::find_if_not(begin, line.end(), is_letter)};
}

bool is_written(std::string_view what, const std::string& line, const std::string& first) {
  return what.starts_with('^') ? first == what.substr(1) : line.find(what) != std::string::npos;
}

/// "malformed number near '2.5j'".
bool is_imaginary_number(const std::string& message) {
  constexpr std::string_view kSaid = "malformed number near '";
  const size_t begin = message.find(kSaid);
  if (begin == std::string::npos) return false;
  const size_t end = message.find('\'', begin + kSaid.size());
  return end != std::string::npos && (message[end - 1] == 'i' || message[end - 1] == 'j');
}

}  // namespace

std::string syntax_hint(const std::string& message, const std::string& line) {
  const std::string first = first_word(line);
  if (is_imaginary_number(message))
    return "\n  fix   Lua has no complex numbers: mh.complex(re, im) makes a tensor of two tensors";
  for (const Hint& hint : kHints) {
    if (message.find(hint.said) == std::string::npos || !is_written(hint.written, line, first)) continue;
    return std::string("\n  fix   ").append(hint.fix);
  }
  return message.find("syntax error near ") == std::string::npos ? "" : did_you_mean(first, kKeywords);
}

}  // namespace moonhalo::scripting
