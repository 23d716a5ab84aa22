// SPDX-License-Identifier: Apache-2.0
// Files that Lua reads: settings and checkpoints.
#include <filesystem>

#include "moonhalo/scripting/core/binding.h"
#include "tests/fuzz/kinds.h"

namespace moonhalo::testing {
namespace {

using namespace scripting;

/// One state for all inputs of a process. Its functions are left, as scripts left alone would find them.
lua_State* state() {
  static const auto made = new_state({});
  return made.get();
}

/// Calls the function that `chunk` gives, with `folder`: its text, or the error's.
std::string call(const std::string& chunk, const std::string& folder) {
  lua_State* lua = state();
  lua_settop(lua, 0);
  if (luaL_loadbufferx(lua, chunk.data(), chunk.size(), "=fuzz.lua", "t") != LUA_OK) return lua_tostring(lua, -1);
  push(lua, folder);
  try {
    call_traced(lua, 1, 1);
  } catch (const LuaError& error) {
    return judge_error(error.what());
  }
  return check_string(lua, -1);
}

// Settings

const char* const kLuaSettings[] = {
    "-- a run\nreturn {\n  steps = 20,        -- optimizer steps\n  lr = 2e-3, amp = false,\n  name = 'small', cut = "
    "{5, 4},\n"
    "  net = {width = 2 * 16, act = \"gelu\"},\n}\n",
    "local width = math.floor(7.5) + 0x1F\nlocal t = {}\nfor i = 1, 3 do t[i] = i * width // 2 end\n"
    "if width > 3 then t[#t + 1] = 7 end\nwhile #t < 5 do t[#t + 1] = #t end\nreturn {cut = t, lr = math.pi / 4, net = "
    "{width = width}}\n",
};
const char* const kJsonSettings =
    "{\n  // a run\n  \"steps\": 3 /* years */, \"lr\": 1e-3, \"amp\": true, \"name\": \"s\\u00e4ule\",\n"
    "  \"cut\": [1, 2, 3],\n  \"net\": {\"act\": \"relu\", \"width\": 8}\n}\n";
const char* const kYamlSettings =
    "# a run\nsteps: 3\nlr: 1e-3\namp: true\nname: \"s\\u00e4ule\"\ncut: &cut [1, 2, 3]\nnet:\n  act: 'relu'\n  width: "
    "8\n";
const std::string kLuaFile = std::string(kInputName) + ".lua", kJsonFile = std::string(kInputName) + ".json",
                  kYamlFile = std::string(kInputName) + ".yaml";

std::vector<InputFiles> valid_settings(const std::string&) {
  return {{.files = {{kLuaFile, kLuaSettings[0]}}},
          {.files = {{kLuaFile, kLuaSettings[1]}}},
          {.files = {{kJsonFile, kJsonSettings}}},
          {.files = {{kYamlFile, kYamlSettings}}}};
}

std::string judge_settings(const std::string& folder, const InputFiles& original) {
  context(state()).config_files = {folder + "/" + original.files.begin()->first};
  return call(R"lua(
local mh = require "moonhalo"
local read, values = pcall(mh.config, {lr = 0.5, steps = 10, amp = false, name = "a", cut = {5, 4}, net = {width = 8, act = "gelu"}})
if math.floor(7.5) ~= 7 or ("x"):rep(2) ~= "xx" or mh.json == nil then return "it changed what is outside" end
if not read then error(values, 0) end
if math.type(values.steps) ~= "integer" or math.type(values.lr) ~= "float" or type(values.net.act) ~= "string" then
  return "a setting of another type"
end
return "read")lua",
              folder);
}

// Checkpoints

const std::string kFolder = kInputName;

std::vector<InputFiles> valid_checkpoints(const std::string& folder) {
  std::vector<InputFiles> inputs;
  for (const char* what : {"opt", "other"}) {
    write_input(folder, {});
    const std::string said = call(std::string("local what = '") + what + R"lua('
local mh = require "moonhalo"
local folder = ...
mh.files.make_folder(folder)
mh.manual_seed(1)
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
net(mh.ones({1, 3})):sum():backward()
opt:step()
local state = {net = net, step = 7, list = {1, 2, {a = 1 / 0}}, best = 0.5, name = "a run"}
if what == "opt" then state.opt = opt end
mh.checkpoint.save(folder .. "/)lua" + kFolder +
                                      R"lua(", state)
return "saved")lua",
                                  folder);
    if (said != "saved") throw std::runtime_error(said);
    inputs.push_back(read_input(folder));
  }
  return inputs;
}

std::string judge_checkpoint(const std::string& folder, const InputFiles& original) {
  const bool opt = original.files.count(kFolder + "/opt.safetensors") != 0;
  return call(std::string("local has_opt = ") + (opt ? "true" : "false") + R"lua(
local mh = require "moonhalo"
local folder = ... .. "/)lua" +
                  kFolder + R"lua("
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
local wrong, refused
local function attempt(into)
  local loaded, problem = pcall(mh.checkpoint.load, folder, into)
  if loaded then return end
  refused = true
  if not tostring(problem):find(folder, 1, true) then wrong = tostring(problem) end
end
attempt()
attempt({net = net})
if has_opt then attempt({opt = opt}) end
if wrong then error(wrong, 0) end
net(mh.ones({1, 3})):sum():backward()
opt:step()
return refused and "refused" or "read")lua",
              folder);
}

std::vector<std::string> settings_words() {
  using Words = std::vector<std::string>;
  const Words signs = {"{", "}", "(", ")", "[", "]", ",", "=", ":", "'", "\"", "[[", "]]", "--[[", "/*", "//"};
  const Words statements = {"return ", "local s = ",     "function f() ",
                            " end ",   "while true do ", "for i = 1, math.huge do ",
                            "goto a ", "::a::",          "if "};
  const Words operators = {"..", "...", "#", "~=", "//", "^", "<<", "%"};
  const Words values = {"nil", "true", "1e999", "9223372036854775807", "-9223372036854775808", "18446744073709551615",
                        "0x",  "0/0"};
  const Words names = {"math", "math.floor", "math.huge", "math.random", "_ENV", "_G", "string"};
  const Words growth = {":rep(", "os.exit()", "t[#t + 1] = t ", "s = s .. s ", "t = {t, t} "};
  const Words data = {"null", "\\u0000", "\\x00", "steps", "net", "width", "lr", "cut", "name", "f()", ";"};
  Words words;
  for (const Words& group : {signs, statements, operators, values, names, growth, data})
    words.insert(words.end(), group.begin(), group.end());
  return words;
}

}  // namespace

const InputKind& configs_kind() {
  static const InputKind kind{
      .name = "configs", .valid = valid_settings, .words = settings_words(), .judge = judge_settings, .once = 4000};
  return kind;
}

const InputKind& checkpoints_kind() {
  static const InputKind kind{.name = "checkpoints",
                              .valid = valid_checkpoints,
                              .words = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "true",
                                        "-1",
                                        "0",
                                        "1e999",
                                        "18446744073709551615",
                                        "\"\"",
                                        "\"$tensor\"",
                                        "\"$number\"",
                                        "\"inf\"",
                                        "\"..\"",
                                        "\"../../x\"",
                                        "\"/etc/passwd\"",
                                        "\"entries\"",
                                        "\"format\"",
                                        "\"net\"",
                                        "\"opt\"",
                                        "\"weight\"",
                                        "\"state\"",
                                        "\"param_groups\"",
                                        "\"F64\"",
                                        "\"shape\"",
                                        "\"data_offsets\"",
                                        "\\u0000",
                                        "/*",
                                        "\"1\"",
                                        "1",
                                        "7.5"},
                              .judge = judge_checkpoint,
                              .once = 2500};
  return kind;
}

}  // namespace moonhalo::testing
