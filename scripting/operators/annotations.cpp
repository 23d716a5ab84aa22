// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/operators/annotations.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <map>
#include <set>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/lua_sources.h"
#include "moonhalo/scripting/core/reference.h"
#include "moonhalo/scripting/operators/operators.h"

namespace moonhalo::scripting {

namespace {

bool is_identifier(const std::string& name) {
  static const std::set<std::string> keywords = {"and",      "break",  "do",   "else", "elseif", "end",  "false", "for",
                                                 "function", "goto",   "if",   "in",   "local",  "nil",  "not",   "or",
                                                 "repeat",   "return", "then", "true", "until",  "while"};
  if (name.empty() || keywords.count(name) || std::isdigit(static_cast<unsigned char>(name[0]))) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

bool is_public(const std::string& name) { return is_identifier(name) && name[0] != '_'; }

std::string type_name(const c10::Type& type, const c10::Type& real) {
  using c10::TypeKind;
  switch (type.kind()) {
    case TypeKind::TensorType:
      return "Tensor";
    case TypeKind::OptionalType:
      return type_name(*type.containedType(0), *real.containedType(0)) + "?";
    case TypeKind::ListType: {
      const std::string element = type_name(*type.containedType(0), *real.containedType(0));
      return (element.ends_with('?') ? "(" + element + ")" : element) + "[]";
    }
    case TypeKind::NumberType:
    case TypeKind::FloatType:
      return "number";
    case TypeKind::SymIntType:
    case TypeKind::IntType: {
      const TypeKind kind = real.kind();
      const bool named =
          kind == TypeKind::ScalarTypeType || kind == TypeKind::LayoutType || kind == TypeKind::MemoryFormatType;
      return named ? "string" : "integer";
    }
    case TypeKind::BoolType:
      return "boolean";
    case TypeKind::StringType:
    case TypeKind::DeviceObjType:
      return "string";
    case TypeKind::GeneratorType:
      return "Generator";
    default:
      return "any";
  }
}

/// "fun(self: Tensor, dim: integer, options?: {keepdim: boolean})"
std::string overload_text(const c10::FunctionSchema& schema) {
  std::string text = "fun(", options;
  bool first = true;
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string type = type_name(*argument.type(), *argument.real_type());
    const std::string name = is_identifier(argument.name()) ? argument.name() : argument.name() + "_";
    const bool optional = argument.default_value().has_value();
    if (argument.kwarg_only()) {
      options += (options.empty() ? "" : ", ") + name + (optional ? "?" : "") + ": " + type;
      continue;
    }
    text += (first ? "" : ", ") + name + (optional ? "?" : "") + ": " + type;
    first = false;
  }
  if (!options.empty()) {
    text += first ? "" : ", ";
    text += "options?: {" + options + "}";
  }
  text += ")";
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    text += (i == 0 ? ": " : ", ") + type_name(*schema.returns()[i].type(), *schema.returns()[i].real_type());
  }
  return text;
}

void write_operator(std::ostream& out, const std::string& owner, const std::string& name) {
  for (const c10::OperatorHandle& op : find_operator(name)->overloads) {
    if (op.schema().overload_name().ends_with("out")) continue;
    out << "---@overload " << overload_text(op.schema()) << "\n";
  }
  out << "function " << owner << name << "(...) end\n\n";
}

/// The string keys of the table on top of the stack, with the Lua types of their values.
std::map<std::string, std::string> fields_of_top(lua_State* lua) {
  std::map<std::string, std::string> fields;
  for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) == LUA_TSTRING) fields[lua_tostring(lua, -2)] = luaL_typename(lua, -1);
  }
  return fields;
}

/// Annotations of the reference by name; a name is removed once it is written.
std::map<std::string, std::string_view> notes_by_name() {
  std::map<std::string, std::string_view> notes;
  for (const ReferenceEntry& entry : reference()) {
    for (size_t i = 0; i < entry.names.size(); ++i) {
      if (!entry.notes[i].empty()) notes.emplace(entry.names[i], entry.notes[i]);  // C and Fortran have none
    }
  }
  return notes;
}

/// Lists what is bound by hand or in Lua, under `owner` ("mh.", "mh.nn.", "Tensor:"); operators that
/// scripts used are in the same tables and come later.
void write_fields(std::ostream& out, const std::string& owner, const std::map<std::string, std::string>& fields,
                  const std::set<std::string>& modules, std::map<std::string, std::string_view>& notes) {
  for (const auto& [name, type] : fields) {
    if (!is_public(name) || modules.count(name)) continue;
    if (const auto note = notes.find(owner + name); note != notes.end()) {
      out << note->second << "\n";
      notes.erase(note);
    } else if (type == "table") {
      out << owner << name << " = {}\n";
    } else if (type == "function") {
      out << "function " << owner << name << "(...) end\n";
    } else {
      out << "---@type " << type << "\n" << owner << name << " = nil\n";
    }
  }
  out << "\n";
}

/// The type of an attribute, which its annotation has behind ---@type.
std::string_view type_of(std::string_view note) {
  const std::string_view mark = "---@type ";
  const size_t at = note.find(mark) + mark.size();
  return note.substr(at, note.find('\n', at) - at);
}

/// Classes of objects, with what the reference says of their methods and attributes.
void write_classes(std::ostream& out, std::map<std::string, std::string_view>& notes) {
  std::string last;
  for (auto note = notes.begin(); note != notes.end();) {
    const std::string owner = note->first.substr(0, note->first.find_first_of(".:"));
    if (owner == "mh" || owner == "Tensor") {
      ++note;
      continue;
    }
    if (owner != last) out << "---@class " << owner << "\nlocal " << owner << " = {}\n\n";
    last = owner;
    out << note->second << "\n";
    note = notes.erase(note);
  }
}

/// Writes names that have no table yet: functions of files that are loaded when they are used.
void write_rest(std::ostream& out, const std::map<std::string, std::string_view>& notes) {
  for (const auto& [name, note] : notes) {
    if (name.starts_with("mh.") || name.starts_with("Tensor:")) out << note << "\n";
  }
}

}  // namespace

void write_annotations(lua_State* lua, std::ostream& out) {
  out << "---@meta moonhalo\n-- Written by `moonhalo info --annotations FILE`.\n\n";
  std::map<std::string, std::string_view> notes = notes_by_name();
  write_classes(out, notes);
  out << "---@class Generator\n\n---@class Tensor\n";
  push_tensor_getters(lua);
  for (const auto& [name, type] : fields_of_top(lua)) {
    if (!is_public(name)) continue;
    const auto note = notes.find("Tensor." + name);
    out << "---@field " << name << " " << (note == notes.end() ? "any" : type_of(note->second)) << "\n";
  }
  lua_pop(lua, 1);
  for (const char* symbol : {"add", "sub", "mul", "div", "idiv", "mod", "pow"}) {
    out << "---@operator " << symbol << "(Tensor|number): Tensor\n";
  }
  out << "---@operator unm: Tensor\n---@operator len: integer\nlocal Tensor = {}\n\nlocal mh = "
         "{}\nmh.Tensor = Tensor\n\n";

  std::set<std::string> modules;
  for (const auto& [file, text] : lua_sources()) {
    const std::string name(file);
    if (name.find('.') != std::string::npos) continue;
    modules.insert(name);
    push_module(lua);
    lua_getfield(lua, -1, name.c_str());
    if (lua_istable(lua, -1)) {
      out << "mh." << name << " = {}\n";
      write_fields(out, "mh." + name + ".", fields_of_top(lua), {}, notes);
    }
    lua_pop(lua, 2);
  }

  push_module(lua);
  const std::map<std::string, std::string> bound = fields_of_top(lua);
  lua_pop(lua, 1);
  write_fields(out, "mh.", bound, modules, notes);
  push_tensor_methods(lua);
  const std::map<std::string, std::string> methods = fields_of_top(lua);
  lua_pop(lua, 1);
  write_fields(out, "Tensor:", methods, {}, notes);

  write_rest(out, notes);
  for (const std::string& name : operator_names()) {
    if (!is_public(name)) continue;
    if (!bound.count(name) && !modules.count(name)) write_operator(out, "mh.", name);
    if (!methods.count(name)) write_operator(out, "Tensor:", name);
  }
  out << "return mh\n";
}

}  // namespace moonhalo::scripting
