// SPDX-License-Identifier: Apache-2.0
// Files that a script leaves behind: pictures, safetensors, and the folders that hold them.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cerrno>
#include <filesystem>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_context.h"
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

/// mh.files.exists(path) -> boolean
///   Whether a file or folder of that name is there, as this rank sees it.
///   path        string      of a file or folder
///   returns     boolean     false also where a folder above it is missing
///   collective  no
///   errors      ValueError: the disk cannot be asked
///   example
///     mh.files.exists(folder), mh.files.exists(folder .. "/nothing")    --> true  false
int exists(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  std::error_code error;
  push(lua, fs::exists(path, error));
  TORCH_CHECK_VALUE(!error, "files.exists: cannot look at '", path, "': ", error.message(),
                    io::disk_remedy(error.value()));
  return 1;
}

/// mh.files.make_folder(path) -> nothing
///   Makes a folder and those above it. A folder that is there is not an error.
///   path        string      of the folder
///   returns     nothing
///   collective  no; several ranks may make the same folder
///   errors      ValueError: a file has that name, or the disk refuses
///   example
///     mh.files.make_folder(folder .. "/a/b")
///     mh.files.exists(folder .. "/a")    --> true
int make_folder(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  std::error_code error;
  fs::create_directories(path, error);
  TORCH_CHECK_VALUE(!error && fs::is_directory(path), "make_folder: cannot make '", path,
                    "': ", error ? error.message() : "a file has that name",
                    io::disk_remedy(error ? error.value() : ENOTDIR));
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

/// _files.write(who, path, text): the file appears under its name when it is complete and on disk.
int write(lua_State* lua) {
  const std::string text = check_string(lua, 3);
  io::NewFile file(check_string(lua, 1), check_string(lua, 2));
  file.write(text.data(), text.size());
  file.finish();
  return 0;
}

/// _files.on_first_rank(fn) -> the text (or nil) that fn gives on rank 0, which alone calls it; its error is one on
/// every rank. In a dry run, where no rank 0 may be, this rank calls it.
/// Collective.
int on_first_rank(lua_State* lua) {
  Communicator& world = *context(lua).world;
  std::string outcome;
  if (world.rank() == 0 || world.is_fake()) {
    try {
      lua_settop(lua, 1);
      call_traced(lua, 0, 1);
      outcome = is_nil(lua, -1) ? "nil" : "text" + check_string(lua, -1);
    } catch (const LuaError& error) {
      outcome = std::string("fail") + error.what();
    }
  }
  outcome = broadcast_string(world, std::move(outcome));
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

/// _files.of_all_ranks(text) -> the strings of all ranks, in their order. Collective.
int of_all_ranks(lua_State* lua) {
  push(lua, context(lua).world->all_gather_strings(check_string(lua, 1)));
  return 1;
}

/// _files.note_unwritten(bytes): counts a file that a dry run leaves out.
int note_unwritten(lua_State* lua) {
  ++io::io_context->unwritten.files;
  io::io_context->unwritten.bytes += check_int(lua, 1);
  return 0;
}

/// _files.unwritten() -> files, bytes that this rank of a dry run has left out
int unwritten(lua_State* lua) {
  push(lua, io::io_context->unwritten.files);
  push(lua, io::io_context->unwritten.bytes);
  return 2;
}

/// mh.files.write_png(path, image) -> nothing
///   Writes a picture.
///   path        string      of the file
///   image       Tensor      uint8 [height, width, 3], plain
///   returns     nothing
///   collective  no; call it on one rank
///   errors      ValueError: another shape or dtype, or the disk refuses
///   example
///     local path = ("%s/%d.png"):format(folder, mh.rank())
///     mh.files.write_png(path, mh.zeros({4, 4, 3}, {dtype = "uint8"}))
///     mh.files.exists(path)    --> true
int write_png(lua_State* lua) {
  io::write_png(check_string(lua, 1), check_tensor(lua, 2).contiguous());
  return 0;
}

/// _files.check_png_name(what, path)
int check_png_name(lua_State* lua) {
  io::check_png_name(check_string(lua, 1), check_string(lua, 2));
  return 0;
}

/// mh.files.read_npy(path) -> Tensor
///   Reads an array that numpy.save has written.
///   path        string      of the file
///   returns     Tensor      plain, the whole array, on the CPU
///   collective  no
///   errors      ValueError: not a .npy file
///   example
///     local path = ("%s/read%d.npy"):format(folder, mh.rank())
///     mh.files.write_npy(path, mh.arange(3))
///     mh.files.read_npy(path):tolist()    --> {0, 1, 2}
int read_npy(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const io::File file = io::open(path);
  TORCH_CHECK_VALUE(io::is_npy(path), "files.read_npy: '", path, "' is no .npy file\n  have  ", file.format(),
                    "\n  fix   read it with mh.h5.open");
  push(lua, file[io::kNpyDataset].read());
  return 1;
}

/// mh.files.write_npy(path, tensor) -> nothing
///   Writes an array that numpy.load reads.
///   path        string      of the file
///   tensor      Tensor      plain
///   returns     nothing
///   collective  no; call it on one rank
///   errors      ValueError: a ShardTensor, of which this rank has only a block
///   example
///     local path = ("%s/write%d.npy"):format(folder, mh.rank())
///     mh.files.write_npy(path, mh.arange(3))
///     mh.files.read_npy(path).dtype    --> int64
int write_npy(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const at::Tensor tensor = check_tensor(lua, 2);
  TORCH_CHECK_VALUE(!is_shard_tensor(tensor), "files.write_npy: '", path,
                    "': a ShardTensor, of which this rank has a block\n  have  ", describe(tensor),
                    "\n  fix   call full_tensor() on all ranks and write on one; or write HDF5 by blocks: "
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

std::map<std::string, std::string> check_strings(lua_State* lua, int index) {
  std::map<std::string, std::string> texts;
  if (is_nil(lua, index)) return texts;
  if (!lua_istable(lua, index)) argument_error(lua, index, "a table of strings");
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
  TORCH_CHECK_TYPE(
      to_tensor(lua, -1) != nullptr, kSave, ": '", name, "' is not a tensor but ", describe(lua, -1),
      "\n  fix   give {name = tensor}, as state_dict() does; mh.checkpoint.save writes tables of other values");
  const at::Tensor tensor = check_tensor(lua, -1);
  TORCH_CHECK_VALUE(
      !is_shard_tensor(tensor), kSave, ": '", name, "' is a ShardTensor, of which this rank has a block",
      "\n  fix   mh.checkpoint.save(path, {model = net}) writes whole tensors into path/model.safetensors; or call "
      "full_tensor() of each on all ranks and save on one");
  return tensor;
}

/// The tensors of {{name, tensor}, ...} or of {name = tensor}, the latter in the order of names.
std::vector<std::pair<std::string, at::Tensor>> check_either(lua_State* lua, int index) {
  TORCH_CHECK_TYPE(lua_istable(lua, index), kSave, ": expected a table of tensors by name, got ", describe(lua, index));
  TORCH_CHECK_TYPE(!is_method(lua, index, "state_dict"), kSave, ": a module or the like is not a table of tensors",
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

/// mh.safetensors.save(path, tensors, metadata = nil) -> nothing
///   Writes tensors into a file that safetensors.torch.load_file of Python reads.
///   path        string      of the file
///   tensors     table       {name = tensor}, such as net:state_dict(), or {{name, tensor}, ...}; plain tensors
///   metadata    table?      strings by name
///   returns     nothing
///   collective  no; call it on one rank
///   errors      ValueError: a ShardTensor (mh.checkpoint.save writes those), or TypeError: a value that is not a
///     tensor
///   example
///     local path = ("%s/save%d.safetensors"):format(folder, mh.rank())
///     mh.safetensors.save(path, nn.Linear(2, 3):state_dict())
///     mh.safetensors.load(path)[1][1]    --> bias
int save_safetensors(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  io::save_safetensors(path, check_either(lua, 2), check_strings(lua, 3));
  return 0;
}

/// mh.safetensors.load(path) -> table
///   Reads all tensors of a .safetensors file. net:load_state_dict takes the result as it is.
///   path        string      of the file
///   returns     table       {{name, tensor}, ...} in the order of the file, on the CPU; a second result is the
///     metadata, a table of strings
///   collective  no
///   errors      ValueError: not a .safetensors file, or a damaged one
///   example
///     local path = ("%s/load%d.safetensors"):format(folder, mh.rank())
///     mh.safetensors.save(path, {a = mh.ones{2}}, {made = "by hand"})
///     local tensors, metadata = mh.safetensors.load(path)
///     tensors[1][2]:tolist(), metadata.made    --> {1.0, 1.0}  by hand
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
    {"write", guard<write>},
    {"on_first_rank", guard<on_first_rank>},
    {"on_every_rank", guard<on_every_rank>},
    {"check_png_name", guard<check_png_name>},
    {"of_all_ranks", guard<of_all_ranks>},
    {"note_unwritten", guard<note_unwritten>},
    {"unwritten", guard<unwritten>},
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
