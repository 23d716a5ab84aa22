// SPDX-License-Identifier: Apache-2.0
// Settings files in YAML. Values stay strings here: the defaults of mh.config decide their types.
#include <c10/util/Exception.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <set>
#include <sstream>
#include <string>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

constexpr int kDeepest = 100;
constexpr int kMostNodes = 100000;  // an alias of aliases stands for billions

/// Notes where a document begins.
struct DocumentStart : YAML::EventHandler {
  using Mark = YAML::Mark;
  using Style = YAML::EmitterStyle::value;
  int line = 1;
  void OnDocumentStart(const Mark& mark) override { line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, YAML::anchor_t) override {}
  void OnAlias(const Mark&, YAML::anchor_t) override {}
  void OnScalar(const Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const Mark&, const std::string&, YAML::anchor_t, Style) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const std::string&, YAML::anchor_t, Style) override {}
  void OnMapEnd() override {}
};

class YamlReader {
 public:
  YamlReader(lua_State* lua, std::string path) : lua_(lua), path_(std::move(path)) {}

  /// Pushes {line, text, quoted}, {line, list = {...}} or {line, keys = {...}, values = {...}}.
  void push_node(const YAML::Node& node, int depth) {
    const int line = node.Mark().line + 1;
    check(depth <= kDeepest, line, "is nested deeper than 100 levels", "flatten it, or leave out an alias of itself");
    check(++nodes_ <= kMostNodes, line, "has more than 100000 values", "leave out aliases of aliases");
    luaL_checkstack(lua_, 8, "yaml");
    lua_newtable(lua_);
    set_field(lua_, "line", static_cast<int64_t>(line));
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        check_tag(node, line);
        set_field(lua_, "text", node.Scalar());
        set_field(lua_, "quoted", node.Tag() != "?");
        break;
      case YAML::NodeType::Sequence:
        push_list(node, depth);
        break;
      case YAML::NodeType::Map:
        push_map(node, depth);
        break;
      default:
        check(false, line, "has a key without a value", "write a value, or leave the key out");
    }
  }

  /// YAML allows no control characters, but yaml-cpp does.
  void check_characters(const std::string& text) const {
    int line = 1;
    for (const char letter : text) {
      const auto code = static_cast<unsigned char>(letter);
      if (letter == '\n') ++line;
      const bool control = (code < 0x20 && letter != '\n' && letter != '\r' && letter != '\t') || code == 0x7f;
      check(!control, line, "has a control character, which YAML does not allow", "write the file as UTF-8");
    }
  }

  [[noreturn]] void refuse(int line, const std::string& problem, const std::string& fix) const {
    TORCH_CHECK_VALUE(false, "config: '", path_, "', line ", line, " ", problem, "\n  fix   ", fix);
  }

 private:
  void check(bool good, int line, const char* problem, const char* fix) const {
    if (!good) refuse(line, problem, fix);
  }

  /// "?": plain, "!": quoted
  void check_tag(const YAML::Node& node, int line) const {
    const std::string& tag = node.Tag();
    if (tag == "?" || tag == "!" || tag.empty() || tag == "tag:yaml.org,2002:str") return;
    refuse(line, "has the tag " + tag, "leave the tag out: the defaults of mh.config give the type");
  }

  void push_list(const YAML::Node& node, int depth) {
    lua_newtable(lua_);
    lua_Integer position = 0;
    for (const YAML::Node& element : node) {
      push_node(element, depth + 1);
      lua_rawseti(lua_, -2, ++position);
    }
    lua_setfield(lua_, -2, "list");
  }

  void push_map(const YAML::Node& node, int depth) {
    std::set<std::string> seen;
    lua_newtable(lua_);
    lua_newtable(lua_);
    lua_Integer position = 0;
    for (const auto& pair : node) {
      const int line = pair.first.Mark().line + 1;
      check(pair.first.IsScalar(), line, "has a key that is not a string", "write NAME: VALUE");
      const std::string& key = pair.first.Scalar();
      check(key != "<<", line, "has <<, which merges maps", "repeat the keys, or give several --config files");
      if (!seen.insert(key).second) refuse(line, "has the key '" + key + "' again", "leave one of them");
      push(lua_, key);
      lua_rawseti(lua_, -3, ++position);
      push_node(pair.second, depth + 1);
      lua_rawseti(lua_, -2, position);
    }
    lua_setfield(lua_, -3, "values");
    lua_setfield(lua_, -2, "keys");
  }

  lua_State* lua_;
  const std::string path_;
  int nodes_ = 0;
};

/// _yaml(path) -> the node at the top, nil of an empty file
int read_yaml(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const std::string text = io::read_file("config", path);
  YamlReader reader(lua, path);
  reader.check_characters(text);
  try {
    // Not YAML::LoadAll: it makes documents without end at a "]" that opens nothing.
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentStart start;
    if (!parser.HandleNextDocument(start)) return lua_pushnil(lua), 1;
    if (parser.HandleNextDocument(start))
      reader.refuse(start.line, "begins a second document", "give several --config files");
    const YAML::Node document = YAML::Load(text);
    if (document.IsNull()) return lua_pushnil(lua), 1;
    reader.push_node(document, 1);
  } catch (const YAML::Exception& error) {
    reader.refuse(error.mark.line + 1, "is not valid YAML: " + error.msg, "correct it");
  }
  return 1;
}

const Binding yaml_binding{"yaml", [](lua_State* lua) {
                             lua_pushcfunction(lua, guard<read_yaml>);
                             lua_setfield(lua, -2, "_yaml");
                           }};

}  // namespace

}  // namespace moonhalo::scripting
