// SPDX-License-Identifier: Apache-2.0
// Settings of a run (--config, --set, --quiet) and its reports (--log, progress).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/program/commands.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_run_settings {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Where these tests write `name`.
std::string file_path(const std::string& name) {
  static const moonhalo::testing::Folder folder;
  return folder / name;
}

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = file_path(name);
  std::ofstream(path) << text;
  return path;
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// Runs `code`, which returns one text, in a fresh state; the error's text when it fails.
std::string run(const Context& context, const std::string& code) {
  const auto state = new_state(context);
  lua_State* lua = state.get();
  const std::string chunk = "local mh = require 'moonhalo'\n" + code;
  EXPECT_EQ(luaL_loadbufferx(lua, chunk.data(), chunk.size(), "=script.lua", "t"), LUA_OK);
  try {
    call_traced(lua, 0, 1);
  } catch (const LuaError& error) {
    return error.what();
  }
  return is_nil(lua, -1) ? "" : check_string(lua, -1);
}

struct ConfigCase {
  const char* name;
  std::vector<std::pair<std::string, std::string>> settings;
  std::string file_name = {};
  std::string file = {};
  std::string expected;  ///< the merged settings as JSON, or the start of the error
};

class Config : public ::testing::TestWithParam<ConfigCase> {};

TEST_P(Config, MergesOrNamesTheKeyAndItsSource) {
  const ConfigCase& given = GetParam();
  Context context;
  context.settings = given.settings;
  if (!given.file_name.empty()) context.config_files = {write_file(given.file_name, given.file)};

  const std::string result = run(context,
                                 "return mh.json.encode(mh.config{lr = 0.5, steps = 10, amp = "
                                 "false, name = 'a', cut = {5, 4},\n"
                                 "  net = {width = 8, act = 'gelu'}})");

  EXPECT_THAT(result, HasSubstr(given.expected));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Config,
    ::testing::Values(
        ConfigCase{
            .name = "defaults",
            .settings = {},
            .expected = R"({"amp":false,"cut":[5,4],"lr":0.5,"name":"a","net":{"act":"gelu","width":8},"steps":10})"},
        ConfigCase{
            .name = "lua_file",
            .settings = {},
            .file_name = "a.lua",
            .file = "return {lr = 1, net = {width = 2 * 16}, cut = {3, 6}}",
            .expected = R"({"amp":false,"cut":[3,6],"lr":1.0,"name":"a","net":{"act":"gelu","width":32},"steps":10})"},
        ConfigCase{
            .name = "json_file_with_comment",
            .settings = {},
            .file_name = "a.json",
            .file = "{\"steps\": 3 /* years */, \"net\": {\"act\": \"relu\"}}",
            .expected = R"({"amp":false,"cut":[5,4],"lr":0.5,"name":"a","net":{"act":"relu","width":8},"steps":3})"},
        ConfigCase{
            .name = "set_wins_over_file",
            .settings =
                {{"lr", "0.25"}, {"net.width", "4"}, {"amp", "true"}, {"cut", "1,7,1"}, {"name", "7"}, {"lr", "0.125"}},
            .file_name = "b.lua",
            .file = "return {lr = 0.75, name = 'b'}",
            .expected =
                R"({"amp":true,"cut":[1,7,1],"lr":0.125,"name":"7","net":{"act":"gelu","width":4},"steps":10})"},
        ConfigCase{.name = "set_list_in_brackets", .settings = {{"cut", "[9]"}}, .expected = R"("cut":[9])"},
        ConfigCase{.name = "unknown_set",
                   .settings = {{"stesp", "3"}},
                   .expected = "script.lua:2: config: unknown key 'stesp'; did you mean 'steps'?\n "
                               " have  from --set stesp=3"},
        ConfigCase{.name = "unknown_nested",
                   .settings = {{"net.widht", "3"}},
                   .expected = "config: unknown key 'net.widht'; did you mean 'width'?"},
        ConfigCase{.name = "unknown_in_file",
                   .settings = {},
                   .file_name = "c.json",
                   .file = R"({"net": {"wide": 3}})",
                   .expected = "config: unknown key 'net.wide'"},
        ConfigCase{.name = "wrong_type",
                   .settings = {{"lr", "fast"}},
                   .expected = "config: 'lr' is a number, got 'fast'\n  have  from --set lr=fast (default 0.5)"},
        ConfigCase{
            .name = "no_integer", .settings = {{"steps", "2.5"}}, .expected = "config: 'steps' is an integer, got 2.5"},
        ConfigCase{.name = "no_boolean",
                   .settings = {{"amp", "yes"}},
                   .expected = "config: 'amp' is true or false, got 'yes'"},
        ConfigCase{.name = "list_element",
                   .settings = {{"cut", "3,x"}},
                   .expected = "config: 'cut[2]' is an integer, got 'x'"},
        ConfigCase{.name = "list_element_in_file",
                   .settings = {},
                   .file_name = "f.lua",
                   .file = "return {cut = {3, 'x'}}",
                   .expected = "config: 'cut[2]' is an integer, got 'x'"},
        ConfigCase{.name = "list_for_a_table",
                   .settings = {},
                   .file_name = "g.lua",
                   .file = "return {net = {8, 'gelu'}}",
                   .expected = "config: 'net' is a table, got "},
        ConfigCase{.name = "quoted_text",
                   .settings = {{"name", "\"true\""}, {"net.act", "'tanh'"}},
                   .expected = R"("name":"true","net":{"act":"tanh","width":8})"},
        ConfigCase{.name = "table_by_set",
                   .settings = {{"net", "3"}},
                   .expected = "fix   set its keys one by one: net.act, net.width"},
        ConfigCase{.name = "keys_of_a_number",
                   .settings = {{"lr.max", "3"}},
                   .expected = "config: 'lr' is a number and has no keys"},
        ConfigCase{.name = "broken_json",
                   .settings = {},
                   .file_name = "d.json",
                   .file = "{\n \"steps\": }",
                   .expected = "is not valid at line 2, column 11"},
        ConfigCase{.name = "broken_lua",
                   .settings = {},
                   .file_name = "d.lua",
                   .file = "return {lr = }",
                   .expected = "config: cannot load"},
        ConfigCase{.name = "no_functions",
                   .settings = {},
                   .file_name = "e.lua",
                   .file = "return {lr = os.time()}",
                   .expected = "attempt to index a nil value (global 'os')"},
        ConfigCase{.name = "function_in_file",
                   .settings = {},
                   .file_name = "h.lua",
                   .file = "return {net = {act = math.floor}}",
                   .expected = "h.lua' gives a function for 'act'\n  fix   settings are a table of numbers"},
        ConfigCase{.name = "other_key_in_file",
                   .settings = {},
                   .file_name = "i.lua",
                   .file = "return {[2.5] = 1}",
                   .expected = "i.lua' has a number as a key"},
        ConfigCase{.name = "number_in_file",
                   .settings = {},
                   .file_name = "j.lua",
                   .file = "return 7",
                   .expected = "j.lua' does not give a table"},
        ConfigCase{.name = "key_with_zero",
                   .settings = {},
                   .file_name = "l.json",
                   .file = R"({"a\u0000\n": 1})",
                   .expected = "config: unknown key 'a  '\n  have  from --config "},
        ConfigCase{.name = "large_value_of_another_type",
                   .settings = {},
                   .file_name = "k.lua",
                   .file = "local t = {} for i = 1, 10000 do t[i] = i end return {lr = t}",
                   .expected = ",68,69,7...\n  have  from --config"},
        ConfigCase{.name = "other_file",
                   .settings = {},
                   .file_name = "e.toml",
                   .file = "lr = 1",
                   .expected = "is neither .lua, .yaml nor .json"}),
    [](const auto& info) { return info.param.name; });

TEST(ConfigFile, ChangesNothingOutside) {
  Context context;
  context.config_files = {write_file("poison.lua",
                                     "math.floor = function() return 42 end\nmath.sqrt = nil\n"
                                     "return {lr = math.floor(7.5)}")};

  EXPECT_EQ(
      run(context, "local lr = mh.config{lr = 0.5}.lr\nreturn lr .. ' ' .. math.floor(7.5) .. ' ' .. math.sqrt(4)"),
      "42.0 7 2.0");
  for (const char* text :
       {"math.random()", "('x'):rep(3)", "string.rep", "getmetatable('').__index", "_G.os", "load('')", "print(1)"}) {
    context.config_files = {write_file("reach.lua", std::string("return {lr = ") + text + "}")};
    EXPECT_THAT(run(context, "mh.config{lr = 0.5}"), HasSubstr("reach.lua' failed: ")) << text;
  }
}

TEST(ConfigFile, IsBounded) {
  const char* const kInstructions = "it takes more than 10000000 instructions\n  fix   settings are a table";
  const char* const kMemory = "it takes more than 64 MiB\n  fix   settings are a table";
  const std::tuple<const char*, std::string, std::string> cases[] = {
      {"while", "\nwhile true do end", std::string("bounds.lua:2: ") + kInstructions},
      {"goto", "\n::again:: goto again", std::string("bounds.lua:2: ") + kInstructions},
      {"recursion", "local function f() return 1 + f() end\nreturn f()", std::string("bounds.lua:1: ") + kMemory},
      {"doubled", "local s = 'x'\nfor i = 1, 60 do s = s .. s end", std::string("bounds.lua:2: ") + kMemory},
      {"list", "local t = {}\nwhile true do\nt[#t + 1] = {} end", std::string("bounds.lua:3: ") + kMemory},
      {"source", "return '" + std::string(size_t{70} << 20, 'x') + "'", std::string("bounds.lua: ") + kMemory},
      {"long_texts", "local s = 'x'\nfor i = 1, 23 do s = s .. s end\nwhile true do local t = s .. 'y' end",
       "bounds.lua:3: it takes more than 3 seconds"},
      {"shared", "local t = {1}\nfor i = 1, 60 do t = {t, t} end\nreturn {t}", "bounds.lua' take more than 64 MiB"},
      {"itself", "local t = {}\nt.t = t\nreturn t", "bounds.lua' nest deeper than 100 levels, or hold themselves"},
      {"bytecode", "\x1bLua", "attempt to load a binary chunk (mode is 't')"},
      {"deep", "return " + std::string(100000, '{'), "bounds.lua': C stack overflow"},
  };
  for (const auto& [name, text, expected] : cases) {
    Context context;
    context.config_files = {write_file("bounds.lua", text)};
    const std::string said = run(context, "mh.config{lr = 0.5}");
    EXPECT_THAT(said, HasSubstr(expected)) << name;
    EXPECT_THAT(said, HasSubstr(context.config_files[0])) << name;
    EXPECT_LT(said.size(), 2000) << name;
  }
}

TEST(ConfigFile, InJsonIsRefusedByName) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"steps": 18446744073709551615})", "which does not fit 64 bits"},
      {R"({"lr": 1e999})", "1e999"},
      {R"({"lr": 1, "lr": 2})", "lr"},
      {std::string(1000000, '['), "nested deeper than 100 levels"},
      {"", "is not valid at line 1"},
  };
  for (const auto& [text, expected] : cases) {
    Context context;
    context.config_files = {write_file("refused.json", text)};
    const std::string said = run(context, "mh.config{lr = 0.5, steps = 3}");
    EXPECT_THAT(said, HasSubstr(expected));
    EXPECT_THAT(said, HasSubstr("json: '" + context.config_files[0] + "' "));
  }
}

TEST(ConfigFile, Y11_InYamlHasTheTypesOfTheDefaults) {
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"lr: 1e-3\nsteps: 7\namp: true\nname: no\ncut: [1, 2]\nnet:\n  act: 12:30\n",
       "{lr = 0.5, steps = 1, amp = false, "
       "name = 'a', cut = {5}, net = {act = 'gelu', width = 8}}",
       R"({"amp":true,"cut":[1,2],"lr":0.001,"name":"no","net":{"act":"12:30","width":8},"steps":7})"},
      {"name: 012\nlr: .5\nsteps: 0x10", "{name = 'a', lr = 1.0, steps = 1}", R"({"lr":0.5,"name":"012","steps":16})"},
      {"name: \"1\"\nany: [1, 2.5, x, 'y', true]", "{name = 'a', any = {}}",
       R"({"any":[1,2.5,"x","y",true],"name":"1"})"},
      {"one: &it {a: 2}\ntwo: *it", "{one = {a = 1}, two = {a = 1}}", R"({"one":{"a":2},"two":{"a":2}})"},
      {"# nothing\n", "{lr = 0.5}", R"({"lr":0.5})"},
      {"", "{lr = 0.5}", R"({"lr":0.5})"},
      {"lr: .inf", "{lr = 0.5}", R"({"lr":null})"},
  };
  for (const auto& [text, defaults, expected] : cases) {
    Context context;
    context.config_files = {write_file("good.yaml", text)};
    EXPECT_EQ(run(context, "return mh.json.encode(mh.config" + defaults + ")"), expected) << text;
  }
}

TEST(ConfigFile, Y11_InYamlIsRefusedByLine) {
  const std::pair<std::string, const char*> cases[] = {
      {"lr: 1\nsteps: 2\nlr: 3", "line 3 has the key 'lr' again"},
      {"net: &n {width: 1}\n<<: *n", "line 2 has <<, which merges maps"},
      {"steps: 012", "'steps' is an integer, got '012'\n  have  from --config "},
      {"steps: 2.5", "'steps' is an integer, got '2.5'"},
      {"\namp: yes", "'amp' is true or false, got 'yes'"},
      {"lr: \"1\"", "'lr' is a number, got the text '1'"},
      {"lr: 12:30", "'lr' is a number, got '12:30'"},
      {"lr:", "line 1 has a key without a value"},
      {"net: 3", "'net' is a table, got '3'"},
      {"net:\n  widht: 3", "unknown key 'net.widht'; did you mean 'width'?"},
      {"cut: {a: 1}", "'cut' is a list, got a map"},
      {"cut: [1, [2]]", "'cut[2]' is an integer, got a list"},
      {"- 1", "the file is a table, got a list"},
      {"? [a]\n: 1", "line 1 has a key that is not a string"},
      {"lr: !!python/object:os.system 1", "line 1 has the tag tag:yaml.org,2002:python/object:os.system"},
      {"lr: 1\n---\nlr: 2", "begins a second document"},
      {"lr: [1", "is not valid YAML"},
      {"lr: *nothing", "is not valid YAML"},
      {"lr: 1\n, 2]\nsteps: 3", "line 2 is not valid YAML: end of map not found"},
      {"# a run\n, 2, 3]\nsteps: 3\n", "begins a second document"},
      {std::string("lr: 1\nname: a\0\0", 16), "line 2 has a control character"},
      {std::string(20000, '['), "is not valid YAML"},
      {"net: &a\n  act: *a", "config: '"},
      {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
       "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]",
       "has more than 100000 values"},
  };
  for (const auto& [text, expected] : cases) {
    Context context;
    context.config_files = {write_file("refused.yaml", text)};
    const std::string said =
        run(context, "mh.config{lr = 0.5, steps = 3, amp = false, cut = {1}, net = {width = 8, act = 'gelu'}}");
    EXPECT_THAT(said, HasSubstr(expected)) << text.substr(0, 100);
    EXPECT_THAT(said, HasSubstr(context.config_files[0])) << text.substr(0, 100);
  }
}

TEST(ConfigFile, Y11_OfSeveralTheLaterHasPriority) {
  Context context;
  context.config_files = {write_file("base.yaml", "lr: 1\nsteps: 5"), write_file("more.json", "{\"steps\": 6}"),
                          write_file("last.lua", "return {net = {width = 3}}")};
  context.settings = {{"net.act", "relu"}};
  EXPECT_EQ(run(context, "return mh.json.encode(mh.config{lr = 0.5, steps = 3, net = {width = 8, act = 'gelu'}})"),
            R"({"lr":1.0,"net":{"act":"relu","width":3},"steps":6})");
}

TEST(Settings, ThatTheScriptDoesNotReadAreReported) {
  const std::string reads = write_file("reads.lua", "require('moonhalo').config{lr = 0.5}");
  const std::string reads_not = write_file("reads_not.lua", "require('moonhalo')");
  const auto errors_of = [](std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(command_line(static_cast<int>(argv.size()), argv.data()), 0);
    return ::testing::internal::GetCapturedStderr();
  };

  EXPECT_EQ(errors_of({"moonhalo", "run", reads, "--set", "lr=1"}), "");
  EXPECT_EQ(errors_of({"moonhalo", "run", reads_not}), "");
  EXPECT_THAT(errors_of({"moonhalo", "run", reads_not, "--set", "lr=1"}),
              HasSubstr("--set and --config had no effect"));
}

TEST(Log, WritesOneObjectALineAfterTheConfig) {
  Context context;
  context.log_file = file_path("run.jsonl");
  std::filesystem::remove(context.log_file);

  const std::string error = run(context,
                                "mh.config{lr = 0.1}\n"
                                "mh.log{loss = 0.25, step = 3, big = 1e300, name = 'a'}\n"
                                "mh.log{loss = 0/0, step = 4, x = mh.tensor(2.5), list = {1, 2}}");

  EXPECT_EQ(error, "");
  EXPECT_EQ(read_file(context.log_file),
            "{\"config\":{\"lr\":0.1}}\n"
            "{\"step\":3,\"big\":1e+300,\"loss\":0.25,\"name\":\"a\"}\n"
            "{\"step\":4,\"list\":[1,2],\"loss\":null,\"x\":2.5}\n");
}

TEST(Log, OfATensorIsTheLogarithm) {
  EXPECT_EQ(run({}, "return tostring(mh.log(mh.tensor{1.0}):item()) .. ' ' .. mh.log(1)"), "0.0 0.0");
  EXPECT_THAT(run({}, "mh.log('x')"), HasSubstr("script.lua:2: log: expected a table {name = value, ...}, got 'x'"));
  Context context;
  context.log_file = "/nowhere/run.jsonl";
  EXPECT_THAT(run(context, "mh.log{a = 1}"), HasSubstr("log: cannot write the log file: /nowhere/run.jsonl"));
  context.log_file = "/dev/full";
  EXPECT_THAT(run(context, "mh.log{a = 1}"), HasSubstr("log: the disk refused '/dev/full': No space left on device"));
}

TEST(Progress, PrintsALineWhereThereIsNoTerminal) {
  ::testing::internal::CaptureStderr();

  const std::string steps = run({},
                                "local seen = {}\n"
                                "for step in mh.progress(3, {desc = 'train'}) do seen[#seen + 1] = "
                                "step; mh.log{step = step, loss = 1 / step} end\n"
                                "return table.concat(seen, ' ')");

  EXPECT_EQ(steps, "1 2 3");
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(shown, StartsWith("train  3/3 (100%)  "));
  EXPECT_THAT(shown, HasSubstr("it/s"));
  EXPECT_THAT(shown, HasSubstr("  loss 0.3333\n"));
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 1);
}

TEST(Progress, EndsWithTheLoopAndIsSilentUnderQuiet) {
  Context quiet;
  quiet.quiet = true;
  ::testing::internal::CaptureStderr();
  run(quiet, "for _ in mh.progress(5) do end");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");

  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run({}, "for i, name in mh.progress{'a', 'b', 'c'} do if i == 2 then return name end end"), "b");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), StartsWith("1/3 (33%)"));
  EXPECT_THAT(run({}, "mh.progress(2.5)"), HasSubstr("progress: expected a number of steps or a list, got 2.5"));
}

TEST(Json, GoesThereAndBack) {
  EXPECT_EQ(run({},
                "return mh.json.encode(mh.json.decode('{\"b\": [1, 2.5, true, \"x\"], \"a\": "
                "{\"n\": null}}'))"),
            R"({"a":{},"b":[1,2.5,true,"x"]})");
  EXPECT_THAT(run({}, "local t = {}; t.t = t; return mh.json.encode(t)"), HasSubstr("nested deeper than 100 levels"));
  EXPECT_THAT(run({}, "return mh.json.encode{print}"), HasSubstr("json: cannot write function"));
  EXPECT_THAT(run({}, "return mh.json.load('/nowhere/a.json')"),
              HasSubstr("json: cannot open '/nowhere/a.json': No such file or directory"));
  EXPECT_THAT(run({}, "return mh.json.load('/')"), HasSubstr("json: cannot open '/': Is a directory"));
  EXPECT_EQ(run({}, "return mh.json.encode(mh.json.decode('[9223372036854775807, -9223372036854775808, 1e300]'))"),
            "[9223372036854775807,-9223372036854775808,1e+300]");
}

TEST(Json, RefusesWhatLuaCannotHold) {
  const auto nested = [](const char* open, int depth, const char* close) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += "1";
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  const struct {
    std::string text, error;
  } cases[] = {
      {nested("[", 50000, "]"), "is nested deeper than 100 levels"},
      {nested("{\"a\": ", 50000, "}"), "is nested deeper than 100 levels"},
      {nested("[", 101, "]"), "is nested deeper than 100 levels"},
      {std::string(50000, '['), "is nested deeper than 100 levels"},
      {"[18446744073709551615]", "has the integer 18446744073709551615, which does not fit 64 bits"},
      {"[9223372036854775808]", "has the integer 9223372036854775808, which"},
      {"{\"a\": -9223372036854775809}", "has the integer -9223372036854775809, which"},
      {"[184467440737095516150000]", "has the integer 184467440737095516150000, which"},
      {"[1,\n 1e999]", "is not valid at line 2, column 6: number overflow parsing '1e999'"},
      {R"({"a": 1, "b": {"lr": 1, "lr": 2}})", "has the key 'lr' twice, in 'b'"},
      {R"({"a": [0, {"lr": null, "lr": 2}]})", "has the key 'lr' twice, in 'a.2'"},
      {R"({"a": 1, "a": 2})", "has the key 'a' twice\n  fix   leave one of them"},
      {"{\"a\": \"" + std::string(100000, 'x'), "is not valid at line 1, column"},
      {"", "is not valid at line 1, column 1"},
  };
  for (const auto& [text, error] : cases) {
    SCOPED_TRACE(text.substr(0, 40));
    const std::string path = write_file("refused.json", text);
    const std::string said = run({}, "return mh.json.load('" + path + "')");
    EXPECT_THAT(said, HasSubstr("json: '" + path + "' " + error));
    EXPECT_LT(said.size(), 600);
  }
  EXPECT_EQ(run({}, "return tostring(#mh.json.encode(mh.json.decode('" + nested("[", 99, "]") + "')))"), "199");
}

}  // namespace
}  // namespace moonhalo::scripting::test_run_settings
