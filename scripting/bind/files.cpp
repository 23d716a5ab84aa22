// SPDX-License-Identifier: Apache-2.0
// Files that a script leaves behind: pictures, safetensors, and the folders that hold them.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cerrno>
#include <filesystem>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/base/png.h"
#include "moonhalo/io/checkpoint/safetensors.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/formats/npy.h"
#include "moonhalo/scripting/bind/named_tensors.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

namespace fs = std::filesystem;

/// files.exists(path)
int exists(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  std::error_code error;
  push(lua, fs::exists(path, error));
  TORCH_CHECK_VALUE(!error, "files.exists: cannot look at '", path, "': ", error.message(), io::disk_remedy(error.value()));
  return 1;
}

/// files.make_folder(path): with those above it; no error when it is there.
int make_folder(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  std::error_code error;
  fs::create_directories(path, error);
  TORCH_CHECK_VALUE(!error && fs::is_directory(path), "make_folder: cannot make '", path, "': ",
                    error ? error.message() : "a file has that name", io::disk_remedy(error ? error.value() : ENOTDIR));
  return 0;
}

/// _files.resolve(path): the folder that it means in the end, behind links, without "/" at its end.
int resolve(lua_State* lua) {
  std::string path = check_string(lua, 1);
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  const fs::path target = fs::is_symlink(path, error) ? fs::weakly_canonical(path, error) : fs::path(path);
  push(lua, error ? path : target.string());
  return 1;
}

/// _files.is_empty(path): nothing is there, or a folder without anything in it.
int is_empty(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  std::error_code error;
  push(lua, !fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error)));
  return 1;
}

/// _files.write(who, path, text): the file appears under its name when it is complete and on disk.
int write(lua_State* lua) {
  const std::string text = check_string(lua, 3);
  io::NewFile file(check_string(lua, 1), check_string(lua, 2));
  file.write(text.data(), text.size());
  file.finish();
  return 0;
}

/// Rank 0's text on every rank. Collective.
void share(Communicator& world, std::string& text) {
  at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  world.broadcast(length, 0);
  text.resize(static_cast<size_t>(length.item<int64_t>()));
  at::Tensor bytes = at::from_blob(text.data(), {length.item<int64_t>()}, at::kByte);
  world.broadcast(bytes, 0);
}

/// _files.on_first_rank(fn) -> the text (or nil) that fn gives on rank 0, which alone calls it; its error is one on
/// every rank.
/// Collective.
int on_first_rank(lua_State* lua) {
  Communicator& world = *context(lua).world;
  std::string outcome;
  if (world.rank() == 0) {
    try {
      lua_settop(lua, 1);
      call_traced(lua, 0, 1);
      outcome = is_nil(lua, -1) ? "nil" : "text" + check_string(lua, -1);
    } catch (const LuaError& error) {
      outcome = std::string("fail") + error.what();
    }
  }
  {
    const WithoutTimeLimit patient;  // rank 0 writes, however long that takes
    share(world, outcome);
  }
  if (outcome.starts_with("fail")) throw LuaError(outcome.substr(4));
  outcome == "nil" ? lua_pushnil(lua) : push(lua, outcome.substr(4));
  return 1;
}

/// _files.on_every_rank(fn) -> the text that fn gives on this rank; nil on all where any rank's gives none. An error of
/// any rank is one on every rank. Collective.
int on_every_rank(lua_State* lua) {
  Communicator& world = *context(lua).world;
  at::Tensor given = at::zeros({1}, at::kLong);
  std::string text;
  try {
    fail_together(world, [&] {
      lua_settop(lua, 1);
      call_traced(lua, 0, 1);
      if (is_nil(lua, -1)) return;
      given.fill_(1);
      text = check_string(lua, -1);
    });
  } catch (const c10::Error& error) {
    throw LuaError(error.what_without_backtrace());  // which names its line already
  }
  world.all_reduce(given, ReduceOp::kMin);
  given.item<int64_t>() == 0 ? lua_pushnil(lua) : push(lua, text);
  return 1;
}

/// _files.of_all_ranks(text) -> the texts of all ranks, in their order. Collective.
int of_all_ranks(lua_State* lua) {
  const std::vector<std::string> texts = context(lua).world->all_gather_strings(check_string(lua, 1));
  lua_createtable(lua, static_cast<int>(texts.size()), 0);
  for (size_t i = 0; i < texts.size(); ++i) {
    push(lua, texts[i]);
    lua_rawseti(lua, -2, static_cast<lua_Integer>(i) + 1);
  }
  return 1;
}

/// files.write_png(path, image): uint8 [height, width, 3].
int write_png(lua_State* lua) {
  io::write_png(check_string(lua, 1), check_tensor(lua, 2).contiguous());
  return 0;
}

/// files.read_npy(path): the whole array, plain, on the CPU.
int read_npy(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const io::File file = io::open(path);
  TORCH_CHECK_VALUE(io::is_npy(path), "files.read_npy: '", path, "' is no .npy file\n  have  ", file.format(),
                    "\n  fix   read it with mh.h5.open");
  push(lua, file[io::kNpyDataset].read());
  return 1;
}

/// files.write_npy(path, tensor): as numpy.save does. Not collective: of ranks that write one path the last one counts.
int write_npy(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const at::Tensor tensor = check_tensor(lua, 2);
  TORCH_CHECK_VALUE(!is_shard_tensor(tensor), "files.write_npy: '", path, "': a ShardTensor, of which this rank has a block\n  have  ",
                    describe(tensor), "\n  fix   call full_tensor() on all ranks and write on one; or write HDF5 by blocks: "
                    "mh.h5.open(path, \"w\"):write(name, x)");
  io::write_npy(path, tensor);
  return 0;
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> check_named_tensors(lua_State* lua, int index) {
  if (!lua_istable(lua, index)) argument_error(lua, index, "a list of {name, tensor}");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    if (!lua_istable(lua, -1)) argument_error(lua, index, "a list of {name, tensor}");
    lua_rawgeti(lua, -1, 1);
    lua_rawgeti(lua, -2, 2);
    tensors.emplace_back(check_string(lua, -2), check_tensor(lua, -1));
    lua_pop(lua, 3);
  }
  return tensors;
}

std::map<std::string, std::string> check_texts(lua_State* lua, int index) {
  std::map<std::string, std::string> texts;
  if (is_nil(lua, index)) return texts;
  if (!lua_istable(lua, index)) argument_error(lua, index, "a table of texts");
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) texts[check_string(lua, -2)] = check_string(lua, -1);
  return texts;
}

namespace {

constexpr const char* kSave = "safetensors.save";

bool is_method(lua_State* lua, int index, const char* name) {
  lua_getfield(lua, index, name);
  const bool result = lua_isfunction(lua, -1);
  lua_pop(lua, 1);
  return result;
}

/// The tensor on top of the stack, which this rank has as a whole.
at::Tensor check_whole_tensor(lua_State* lua, const std::string& name) {
  TORCH_CHECK_TYPE(to_tensor(lua, -1) != nullptr, kSave, ": '", name, "' is no tensor but ", describe(lua, -1),
                   "\n  fix   give {name = tensor}, as state_dict() does; mh.checkpoint.save writes tables of other values");
  const at::Tensor tensor = check_tensor(lua, -1);
  TORCH_CHECK_VALUE(!is_shard_tensor(tensor), kSave, ": '", name, "' is a ShardTensor, of which this rank has a block",
                    "\n  fix   mh.checkpoint.save(path, {model = net}) writes whole tensors into path/model.safetensors; or call "
                    "full_tensor() of each on all ranks and save on one");
  return tensor;
}

/// The tensors of {{name, tensor}, ...} or of {name = tensor}, the latter in the order of names.
std::vector<std::pair<std::string, at::Tensor>> check_either(lua_State* lua, int index) {
  TORCH_CHECK_TYPE(lua_istable(lua, index), kSave, ": wanted a table of tensors by name, got ", describe(lua, index));
  TORCH_CHECK_TYPE(!is_method(lua, index, "state_dict"), kSave, ": a module or the like is no table of tensors",
                   "\n  fix   give its state_dict()");
  std::map<std::string, at::Tensor> named;
  std::map<lua_Integer, std::pair<std::string, at::Tensor>> listed;
  for (lua_pushnil(lua); lua_next(lua, index); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) == LUA_TSTRING) {
      const std::string name = check_string(lua, -2);
      named.emplace(name, check_whole_tensor(lua, name));
      continue;
    }
    const std::string place = "element " + std::string(luaL_tolstring(lua, -2, nullptr));
    lua_pop(lua, 1);
    TORCH_CHECK_TYPE(lua_isinteger(lua, -2) && lua_istable(lua, -1), kSave, ": ", place, " is no {name, tensor} but ",
                     describe(lua, -1), "\n  fix   give {{name, tensor}, ...} or {name = tensor}");
    lua_rawgeti(lua, -1, 1);
    TORCH_CHECK_TYPE(lua_type(lua, -1) == LUA_TSTRING, kSave, ": ", place, " has no name first but ", describe(lua, -1),
                     "\n  fix   give {{name, tensor}, ...} or {name = tensor}");
    const std::string name = check_string(lua, -1);
    lua_rawgeti(lua, -2, 2);
    listed.emplace(lua_tointeger(lua, -4), std::pair(name, check_whole_tensor(lua, name)));
    lua_pop(lua, 2);
  }
  TORCH_CHECK_TYPE(named.empty() || listed.empty(), kSave, ": '", named.begin()->first,
                   "' stands beside a list\n  fix   give {{name, tensor}, ...} or {name = tensor}");
  std::vector<std::pair<std::string, at::Tensor>> tensors(named.begin(), named.end());
  for (auto& [position, pair] : listed) tensors.push_back(std::move(pair));
  return tensors;
}

/// safetensors.save(path, {name = tensor} or {{name, tensor}, ...}, metadata): what state_dict() gives, too. Not
/// collective: of ranks that write one path the last one counts, so call it on one rank. Errors: a ShardTensor, and all
/// that is no tensor, before anything is written.
int save_safetensors(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  io::save_safetensors(path, check_either(lua, 2), check_texts(lua, 3));
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
    set_field(lua, key.c_str(), text);
  }
  return 2;
}

const luaL_Reg file_functions[] = {
    {"exists", guard<exists>},     {"make_folder", guard<make_folder>}, {"write_png", guard<write_png>},
    {"read_npy", guard<read_npy>}, {"write_npy", guard<write_npy>},     {nullptr, nullptr},
};
// Only the embedded Lua files call these.
const luaL_Reg internals[] = {
    {"resolve", guard<resolve>},
    {"is_empty", guard<is_empty>},
    {"write", guard<write>},
    {"on_first_rank", guard<on_first_rank>},
    {"on_every_rank", guard<on_every_rank>},
    {"of_all_ranks", guard<of_all_ranks>},
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

const Binding files_binding("files", [](lua_State* lua) {
  add_table(lua, "files", file_functions);
  add_table(lua, "_files", internals);
  add_table(lua, "safetensors", safetensors_functions);
});

}  // namespace

}  // namespace moonhalo::scripting
