// SPDX-License-Identifier: Apache-2.0
// Files that a script leaves behind: pictures, safetensors, and the folders that hold them.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <filesystem>

#include "io/png.h"
#include "io/safetensors.h"
#include "scripting/state.h"

namespace moonhalo::scripting {

namespace {

namespace fs = std::filesystem;

/// files.exists(path)
int exists(lua_State* lua) {
  push(lua, fs::exists(check_string(lua, 1)));
  return 1;
}

/// files.make_folder(path): with those above it; no error when it is there.
int make_folder(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  std::error_code error;
  fs::create_directories(path, error);
  TORCH_CHECK_VALUE(!error && fs::is_directory(path), "make_folder: cannot make '", path, "': ",
                    error ? error.message() : "a file has that name");
  return 0;
}

/// files.replace_folder(from, to): gives folder `from` the name `to`; a folder of that name is removed first.
int replace_folder(lua_State* lua) {
  const std::string from = check_string(lua, 1), to = check_string(lua, 2);
  std::error_code error;
  if (fs::is_directory(to)) fs::remove_all(to, error);
  if (!error) fs::rename(from, to, error);
  TORCH_CHECK_VALUE(!error, "replace_folder: cannot give '", from, "' the name '", to, "': ", error.message());
  return 0;
}

/// files.write_png(path, image): uint8 [height, width, 3].
int write_png(lua_State* lua) {
  io::write_png(check_string(lua, 1), check_tensor(lua, 2).contiguous());
  return 0;
}

/// safetensors.save(path, {{name, tensor}, ...}, metadata)
int save_safetensors(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  if (!lua_istable(lua, 2)) argument_error(lua, 2, "a list of {name, tensor}");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, 2));
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, 2, i);
    if (!lua_istable(lua, -1)) argument_error(lua, 2, "a list of {name, tensor}");
    lua_rawgeti(lua, -1, 1);
    lua_rawgeti(lua, -2, 2);
    tensors.emplace_back(check_string(lua, -2), check_tensor(lua, -1));
    lua_pop(lua, 3);
  }
  std::map<std::string, std::string> metadata;
  if (!is_nil(lua, 3)) {
    if (!lua_istable(lua, 3)) argument_error(lua, 3, "a table of texts");
    for (lua_pushnil(lua); lua_next(lua, 3); lua_pop(lua, 1))
      metadata[check_string(lua, -2)] = check_string(lua, -1);
  }
  io::save_safetensors(path, tensors, metadata);
  return 0;
}

/// safetensors.load(path) -> {{name, tensor}, ...}, metadata
int load_safetensors(lua_State* lua) {
  const io::SafetensorsFile file = io::load_safetensors(check_string(lua, 1));
  lua_createtable(lua, static_cast<int>(file.tensors.size()), 0);
  lua_Integer position = 0;
  for (const auto& [name, tensor] : file.tensors) {
    lua_createtable(lua, 2, 0);
    push(lua, name);
    lua_rawseti(lua, -2, 1);
    push(lua, tensor);
    lua_rawseti(lua, -2, 2);
    lua_rawseti(lua, -2, ++position);
  }
  lua_newtable(lua);
  for (const auto& [key, text] : file.metadata) {
    push(lua, text);
    lua_setfield(lua, -2, key.c_str());
  }
  return 2;
}

const luaL_Reg file_functions[] = {
    {"exists", guard<exists>},
    {"make_folder", guard<make_folder>},
    {"replace_folder", guard<replace_folder>},
    {"write_png", guard<write_png>},
    {nullptr, nullptr},
};
const luaL_Reg safetensors_functions[] = {
    {"save", guard<save_safetensors>},
    {"load", guard<load_safetensors>},
    {nullptr, nullptr},
};

void add_table(lua_State* lua, const char* name, const luaL_Reg* functions) {
  lua_newtable(lua);
  add_functions(lua, functions);
  lua_setfield(lua, -2, name);
}

const Binding binding("files", [](lua_State* lua) {
  add_table(lua, "files", file_functions);
  add_table(lua, "safetensors", safetensors_functions);
});

}  // namespace

}  // namespace moonhalo::scripting
