// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepest = 100;
constexpr size_t kLongestReason = 200;

/// The line and column of a byte of `text`, both from 1.
std::string place(const std::string& text, size_t byte) {
  const std::string before = text.substr(0, byte > 0 ? byte - 1 : 0);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string::npos ? before.size() + 1 : before.size() - newline;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

/// Makes a Lua value of JSON's events. It does not recurse, so hostile files cannot overflow a stack.
class LuaReader : public nlohmann::json_sax<Json> {
 public:
  /// `source` is what messages call the text: "'run.json'".
  LuaReader(lua_State* lua, const std::string& text, std::string source)
      : lua_(lua), text_(text), source_(std::move(source)) {}

  bool null() override {
    lua_pushnil(lua_);
    return store();
  }
  bool boolean(bool value) override { return store(value); }
  bool number_integer(number_integer_t value) override { return store(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) refuse_integer(std::to_string(value));
    return store(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const std::string& digits) override {
    if (digits.find_first_not_of("-0123456789") == std::string::npos) refuse_integer(digits);
    return store(value);
  }
  bool string(std::string& value) override { return store(value); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return start(); }
  bool start_array(size_t) override {
    start();
    levels_.back().length = 0;
    return true;
  }
  bool key(std::string& name) override {
    Level& level = levels_.back();
    TORCH_CHECK_VALUE(level.names.insert(name).second, "json: ", source_, " has the key '", name, "' twice", inside(),
                      "\n  fix   leave one of them");
    level.name = name;
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();
    what = what.substr(what.find("] ") + 2);
    if (what.starts_with("parse error")) what = what.substr(what.find(": ") + 2);
    TORCH_CHECK_VALUE(false, "json: ", source_, " is not valid at ", place(text_, position), ": ",
                      what.substr(0, kLongestReason));
  }

 private:
  struct Level {
    std::optional<lua_Integer> length;  // of arrays
    std::set<std::string> names;
    std::string name;
  };

  template <class Value>
  bool store(const Value& value) {
    push(lua_, value);
    return store();
  }
  /// The value on top of the stack goes into the table below it.
  bool store() {
    if (levels_.empty()) return true;
    Level& level = levels_.back();
    if (level.length) {
      lua_rawseti(lua_, -2, ++*level.length);
    } else {
      push(lua_, level.name);
      lua_insert(lua_, -2);
      lua_rawset(lua_, -3);
    }
    return true;
  }
  bool start() {
    TORCH_CHECK_VALUE(levels_.size() < kDeepest, "json: ", source_, " is nested deeper than ", kDeepest, " levels");
    luaL_checkstack(lua_, 4, "json");
    lua_newtable(lua_);
    levels_.emplace_back();
    return true;
  }
  bool end() {
    levels_.pop_back();
    return store();
  }

  /// ", in 'net.layers.2'"
  std::string inside() const {
    std::string path;
    for (size_t i = 0; i + 1 < levels_.size(); ++i) {
      path += (i > 0 ? "." : "") + (levels_[i].length ? std::to_string(*levels_[i].length + 1) : levels_[i].name);
    }
    return path.empty() ? "" : ", in '" + path + "'";
  }
  [[noreturn]] void refuse_integer(const std::string& digits) const {
    TORCH_CHECK_VALUE(false, "json: ", source_, " has the integer ", digits.substr(0, kLongestReason),
                      ", which does not fit 64 bits", "\n  fix   write it as a string, or as a float: with a point");
  }

  lua_State* lua_;
  const std::string& text_;
  const std::string source_;
  std::vector<Level> levels_;
};

/// A place in the table that is written, for messages: "run.history.3".
struct JsonPlace {
  const JsonPlace* above;
  std::string name;
  int depth;

  std::string text() const {
    return above == nullptr ? name : (above->text().empty() ? "" : above->text() + ".") + name;
  }
  std::string quoted() const { return above == nullptr ? "the table" : "'" + text() + "'"; }
};

Json to_json(lua_State* lua, int index, const JsonPlace& place);

/// The last index of a list, where nil may stand between elements; nothing for a table of strings. JSON has no
/// others.
std::optional<lua_Integer> length_of(lua_State* lua, int index, const JsonPlace& place) {
  lua_Integer last = 0, elements = 0, texts = 0;
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    const bool is_text = lua_type(lua, -2) == LUA_TSTRING;
    TORCH_CHECK_TYPE(is_text || (lua_isinteger(lua, -2) && lua_tointeger(lua, -2) > 0), "json: ", place.quoted(),
                     " has a key that is not a string: ", describe(lua, -2),
                     "\n  fix   use a list, or strings as keys");
    ++(is_text ? texts : elements);
    if (!is_text) last = std::max(last, lua_tointeger(lua, -2));
  }
  if (elements == 0) return std::nullopt;
  TORCH_CHECK_TYPE(texts == 0, "json: ", place.quoted(), " is a list with ", texts,
                   " other keys beside it, which JSON does not have",
                   "\n  fix   give the list a name of its own in the table");
  TORCH_CHECK_TYPE(last / 2 <= elements, "json: ", place.quoted(), " is a list of ", elements,
                   " elements, the last of which is number ", last,
                   "\n  fix   use strings as keys, or a list without holes");
  return last;
}

Json list_to_json(lua_State* lua, int index, lua_Integer length, const JsonPlace& place) {
  Json list = Json::array();
  for (lua_Integer i = 1; i <= length; ++i) {
    lua_rawgeti(lua, index, i);
    list.push_back(to_json(lua, -1, {&place, std::to_string(i), place.depth + 1}));
    lua_pop(lua, 1);
  }
  return list;
}

Json to_json(lua_State* lua, int index, const JsonPlace& place) {
  luaL_checkstack(lua, 6, "json");
  index = lua_absindex(lua, index);
  TORCH_CHECK_VALUE(place.depth < kDeepest, "json: a table is nested deeper than ", kDeepest,
                    " levels, or holds itself");
  if (is_nil(lua, index)) return nullptr;
  switch (lua_type(lua, index)) {
    case LUA_TBOOLEAN:
      return static_cast<bool>(lua_toboolean(lua, index));
    case LUA_TSTRING:
      return check_string(lua, index);
    case LUA_TNUMBER: {
      if (lua_isinteger(lua, index)) return static_cast<int64_t>(lua_tointeger(lua, index));
      const double number = lua_tonumber(lua, index);
      return std::isfinite(number) ? Json(number) : Json(nullptr);
    }
    case LUA_TTABLE:
      break;
    default:
      TORCH_CHECK_TYPE(false, "json: cannot write ", describe(lua, index),
                       place.above ? ", which is " + place.quoted() : "");
  }
  if (const auto length = length_of(lua, index, place)) return list_to_json(lua, index, *length, place);
  std::map<std::string, Json> sorted;
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    size_t bytes = 0;
    const char* text = lua_tolstring(lua, -2, &bytes);
    const std::string key(text, bytes);
    sorted.emplace(key, to_json(lua, -1, {&place, key, place.depth + 1}));
  }
  Json object = Json::object();
  for (const char* first : {"step", "epoch"}) {
    if (const auto found = sorted.find(first); found != sorted.end()) object[first] = found->second;
  }
  for (auto& [key, element] : sorted) object[key] = std::move(element);
  return object;
}

void decode_text(lua_State* lua, const std::string& text, const std::string& source) {
  LuaReader reader(lua, text, source);
  Json::sax_parse(text, &reader, nlohmann::detail::input_format_t::json, /*strict=*/true, /*ignore_comments=*/true);
}

/// mh.json.decode(text) -> any
///   The value of a JSON text. Objects and arrays become tables, null becomes nil; comments are allowed.
///   text        string      JSON
///   returns     any         a table, number, string, boolean or nil
///   collective  no
///   errors      ValueError: no valid JSON, with line and column; a key twice; an integer beyond 64 bits
///   example
///     mh.json.decode('{"lr": 0.1, "sizes": [1, 2]}').sizes    --> {1, 2}
int decode(lua_State* lua) {
  decode_text(lua, check_string(lua, 1), "the text");
  return 1;
}

/// mh.json.load(path) -> any
///   The value of a file of JSON.
///   path        string      of the file
///   returns     any         as of mh.json.decode
///   collective  no
///   errors      ValueError: the file cannot be read, or has no valid JSON
///   example
///     local path = ("%s/%d.json"):format(folder, mh.rank())
///     local file <close> = io.open(path, "w")
///     assert(file:write('{"a": 1}') and file:flush())
///     mh.json.load(path).a    --> 1
int load(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  decode_text(lua, io::read_file("json", path), "'" + path + "'");
  return 1;
}

/// mh.json.encode(value, indent = nil) -> string
///   A value as JSON. Keys are sorted, but "step" and "epoch" come first. NaN and infinities, which JSON lacks, become
///   null, and so does nil between the elements of a list.
///   value       any         tables, numbers, strings, booleans, nil
///   indent      integer?    spaces of each level; nil for one line
///   returns     string      the same on all ranks for equal values
///   collective  no
///   errors      TypeError: a function or tensor, a list with other keys beside it, keys that are not strings
///   example
///     mh.json.encode{loss = 0.5, step = 3}    --> {"step":3,"loss":0.5}
int encode(lua_State* lua) {
  const int indent = is_nil(lua, 2) ? -1 : static_cast<int>(check_int(lua, 2));
  try {
    push(lua, to_json(lua, 1, {nullptr, "", 0}).dump(indent));
  } catch (const Json::type_error&) {
    TORCH_CHECK_VALUE(
        false,
        "json: a string is not UTF-8, which JSON is written in\n  fix   leave it out, or write its bytes as numbers");
  }
  return 1;
}

const luaL_Reg kJsonFunctions[] = {
    {"decode", guard<decode>},
    {"encode", guard<encode>},
    {"load", guard<load>},
    {nullptr, nullptr},
};

const Binding json_binding("json", [](lua_State* lua) {
  lua_newtable(lua);
  add_functions(lua, kJsonFunctions);
  lua_setfield(lua, -2, "json");
});

}  // namespace

}  // namespace moonhalo::scripting
