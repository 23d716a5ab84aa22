// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/core/strict_globals.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

[[noreturn]] void usage(const std::string& option, const std::string& text, const std::string& form) {
  throw UsageError("check: " + option + ": cannot read '" + text + "'\n  have  " + option + " " + text + "\n  fix   " +
                   form);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

struct Substitute {
  std::string name, dtype = "float64";
  std::vector<int64_t> shape;
};

/// "u=64x48:float32"
Substitute parse_field(const std::string& text) {
  const std::string form = "NAME=EXTENTS[:DTYPE], in the script's order of dims, as u=64x48 or u=64x48:float32";
  const size_t equals = text.find('='), colon = text.find(':');
  if (equals == 0 || equals == std::string::npos || (colon != std::string::npos && colon < equals))
    usage("--field", text, form);
  Substitute field{text.substr(0, equals)};
  if (colon != std::string::npos) field.dtype = text.substr(colon + 1);
  for (const std::string& extent : split(text.substr(equals + 1, colon - equals - 1), 'x')) {
    char* end = nullptr;
    const long long rows = std::strtoll(extent.c_str(), &end, 10);
    if (extent.empty() || *end != '\0' || rows < 1 || rows > 1000000000) usage("--field", text, form);
    field.shape.push_back(rows);
  }
  return field;
}

struct Call {
  std::string name;
  std::vector<double> numbers;
  bool given = false;
};

/// "train=0.1,2"
Call parse_call(const std::string& text) {
  const size_t equals = text.find('=');
  Call call{text.substr(0, equals), {}, true};
  const std::string form = "FUNCTION or FUNCTION=NUMBERS, as train=0.1,2";
  if (call.name.empty()) usage("--call", text, form);
  if (equals == std::string::npos) return call;
  for (const std::string& one : split(text.substr(equals + 1), ',')) {
    char* end = nullptr;
    call.numbers.push_back(std::strtod(one.c_str(), &end));
    if (one.empty() || *end != '\0') usage("--call", text, form);
  }
  return call;
}

template <typename Numbers>
void push_list(lua_State* lua, const Numbers& numbers) {
  lua_createtable(lua, static_cast<int>(numbers.size()), 0);
  for (size_t i = 0; i < numbers.size(); ++i) {
    push(lua, numbers[i]);
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
}

void check(lua_State* lua, const std::vector<Substitute>& fields, const std::vector<Call>& calls, bool verify) {
  push_embedded(lua, "internal.check", "prepare");
  push(lua, verify);
  call_traced(lua, 1, 0);
  for (const Substitute& field : fields) {
    push_embedded(lua, "internal.check", "field");
    push(lua, field.name);
    push_list(lua, field.shape);
    push(lua, field.dtype);
    call_traced(lua, 3, 0);
  }
  forbid_undefined_globals(lua);
  run_script(lua, 0);
  if (calls.empty()) {
    push_embedded(lua, "internal.check", "call_all");
    call_traced(lua, 0, 0);
  }
  for (const Call& call : calls) {
    push_embedded(lua, "internal.check", "call");
    push(lua, call.name);
    push_list(lua, call.numbers);
    call_traced(lua, 2, 0);
  }
}

}  // namespace

void add_check_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("check", "Run the script of a simulation code (moonhalo_c.h) without it, on made-up fields");
  const auto options = std::make_shared<SessionOptions>();
  const auto fields = std::make_shared<std::vector<std::string>>(),
             calls = std::make_shared<std::vector<std::string>>();
  command->add_option("script", options->script, "The Lua script")->required()->check(CLI::ExistingFile);
  command->add_option("--field", *fields, "A field of the code, NAME=EXTENTS[:DTYPE], as u=64x48; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--call", *calls, "A function to call, FUNCTION[=NUMBERS], as train=0.1; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  const auto verify = std::make_shared<bool>(false);
  command->add_flag("--verify", *verify, "Compare each call with the same one on whole fields (mh.host.verify)");
  add_rank_options(*command, *options);
  add_timeout_option(*command, *options);
  command->add_option("--set", options->settings, "What the code gives as settings, key=value; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->footer(
      "Without --call every global function of the script is called once, in the order of names, with 1 for each "
      "parameter.\nFields are smooth and cut over the ranks, as grids of two dims where that is possible.");
  command->callback([options, fields, calls, verify, &action] {
    action = [options, fields, calls, verify] {
      std::vector<Substitute> substitutes;
      std::vector<Call> wanted;
      for (const std::string& text : *fields) substitutes.push_back(parse_field(text));
      for (const std::string& text : *calls) wanted.push_back(parse_call(text));
      return run_session(*options, [&](lua_State* lua) { check(lua, substitutes, wanted, *verify); });
    };
  });
}

}  // namespace moonhalo::scripting
