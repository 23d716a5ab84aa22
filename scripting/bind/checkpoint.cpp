// SPDX-License-Identifier: Apache-2.0
// The parts of lua/checkpoint.lua: the folders and files of checkpoints.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "moonhalo/io/checkpoint/checkpoint_read.h"
#include "moonhalo/io/checkpoint/checkpoint_write.h"
#include "moonhalo/io/checkpoint/packed_checkpoint.h"
#include "moonhalo/io/shares/share_blocks.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/bind/named_tensors.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<io::CheckpointWriter> = "CheckpointWriter";
template <>
inline constexpr const char* kObjectName<io::CheckpointReader> = "CheckpointReader";
template <>
inline constexpr const char* kObjectName<io::BackgroundWrite> = "BackgroundWrite";
template <>
inline constexpr const char* kObjectName<io::CheckpointSaving> = "CheckpointSaving";

namespace {

// Folders: who, path

template <void (*fn)(const std::string&, const std::string&)>
int with_folder(lua_State* lua) {
  fn(check_string(lua, 1), check_string(lua, 2));
  return 0;
}

/// find(who, path) -> the newest complete folder of a checkpoint, or nil
int find(lua_State* lua) {
  const auto found = io::find_checkpoint(check_string(lua, 1), check_string(lua, 2));
  found ? push(lua, *found) : lua_pushnil(lua);
  return 1;
}

/// list(who, folder), list_folders(who, folder) -> names
template <std::vector<std::string> (*fn)(const std::string&, const std::string&)>
int list(lua_State* lua) {
  push(lua, fn(check_string(lua, 1), check_string(lua, 2)));
  return 1;
}

/// now() -> seconds since 1970, with fractions
int now(lua_State* lua) {
  push(lua, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  return 1;
}

/// identity(tensor) -> what no other tensor alive has; aliases made by detach() have their own
int identity(lua_State* lua) {
  push(lua, static_cast<int64_t>(reinterpret_cast<intptr_t>(check_tensor(lua, 1).unsafeGetTensorImpl())));
  return 1;
}

// Blocks

/// block(tensor) -> this rank's block, plain, and where it begins
int block(lua_State* lua) {
  const at::Tensor tensor = check_tensor(lua, 1).detach();
  push(lua, materialize_lazy_bits(is_shard_tensor(tensor) ? to_local(tensor) : tensor));
  std::vector<int64_t> begin;
  const Box box = io::held_box(tensor);
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) begin.push_back(box[dim].begin);
  push(lua, begin);
  return 2;
}

/// exchange(mesh, target, owned, block): fill_from_blocks. `owned`: by rank of the mesh {begin, size}, or false
int exchange(lua_State* lua) {
  const at::Tensor& target = check_tensor(lua, 2);
  std::vector<Box> owned;
  for (lua_Integer rank = 1; rank <= luaL_len(lua, 3); ++rank) {
    lua_rawgeti(lua, 3, rank);
    Box box;
    if (lua_istable(lua, -1)) {
      lua_rawgeti(lua, -1, 1);
      lua_rawgeti(lua, -2, 2);
      const auto begin = check_int_list(lua, -2), size = check_int_list(lua, -1);
      for (size_t dim = 0; dim < begin.size(); ++dim) box.push_back({begin[dim], begin[dim] + size[dim]});
      if (begin.empty()) box.push_back({0, 1});
      lua_pop(lua, 2);
    } else {
      for (int64_t dim = 0; dim < std::max<int64_t>(target.dim(), 1); ++dim) box.push_back({0, 0});
    }
    owned.push_back(std::move(box));
    lua_pop(lua, 1);
  }
  io::fill_from_blocks(check_object<DeviceMesh>(lua, 1), target, owned, check_tensor(lua, 4));
  return 0;
}

// Whole tensors

/// The tensors of {{name, tensor, owner}, ...}; owner: rank 0 where it is nil.
io::PackedTensors check_packed_tensors(lua_State* lua, int index) {
  io::PackedTensors packed{.tensors = check_named_tensors(lua, index), .owners = {}};
  for (size_t i = 0; i < packed.tensors.size(); ++i) {
    lua_rawgeti(lua, index, static_cast<lua_Integer>(i) + 1);
    lua_rawgeti(lua, -1, 3);
    packed.owners.push_back(is_nil(lua, -1) ? 0 : check_int(lua, -1));
    lua_pop(lua, 2);
  }
  return packed;
}

/// save(path, entries as JSON, tensors by entry, async, max_file_bytes or nil) -> saving. Collective
int save_whole(lua_State* lua) {
  io::PackedCheckpoint packed{.entries = check_string(lua, 2), .tensors = {}};
  for (lua_pushnil(lua); lua_next(lua, 3); lua_pop(lua, 1)) {
    packed.tensors[check_string(lua, -2)] = check_packed_tensors(lua, lua_gettop(lua));
  }
  const io::SaveOptions options{.async = lua_toboolean(lua, 4) != 0,
                                .max_file_bytes = is_nil(lua, 5) ? 0 : check_int(lua, 5)};
  push_object(lua, std::make_shared<io::CheckpointSaving>(
                       io::write_checkpoint(*context(lua).world, check_string(lua, 1), packed, options)));
  return 1;
}

/// saving:wait() -> path. Collective
int saving_wait(lua_State* lua) {
  push(lua, check_object<io::CheckpointSaving>(lua, 1)->wait());
  return 1;
}

int saving_is_done(lua_State* lua) {
  push(lua, check_object<io::CheckpointSaving>(lua, 1)->is_done());
  return 1;
}

/// open(path) -> folder, text of checkpoint.json, format, reader of all entries. Collective
int open_whole(lua_State* lua) {
  const io::OpenCheckpoint opened = io::open_checkpoint(*context(lua).world, check_string(lua, 1));
  push(lua, opened.folder);
  push(lua, opened.json.text);
  push(lua, opened.json.format);
  push_object(lua, opened.reader);
  return 4;
}

/// read_text(folder) -> text of checkpoint.json, format
int read_text(lua_State* lua) {
  const io::CheckpointText read = io::read_checkpoint_text(check_string(lua, 1));
  push(lua, read.text);
  push(lua, read.format);
  return 2;
}

/// is_entry_name(value) -> boolean
int is_entry_name(lua_State* lua) {
  push(lua, lua_type(lua, 1) == LUA_TSTRING && io::is_entry_name(check_string(lua, 1)));
  return 1;
}

// Writing blocks

/// own_writer(path): of this rank alone
int make_own_writer(lua_State* lua) {
  push_object(lua, std::make_shared<io::CheckpointWriter>(check_string(lua, 1), context(lua).world->is_fake()));
  return 1;
}

/// writer:add(name, {{name, tensor}, ...}[, metadata])
int writer_add(lua_State* lua) {
  check_object<io::CheckpointWriter>(lua, 1)->add(check_string(lua, 2), check_named_tensors(lua, 3), {},
                                                  check_strings(lua, 4));
  return 0;
}

template <class T, void (T::*fn)()>
int call(lua_State* lua) {
  (check_object<T>(lua, 1).get()->*fn)();
  return 0;
}

int writer_copy(lua_State* lua) {
  push_object(lua, check_object<io::CheckpointWriter>(lua, 1)->copy());
  return 1;
}

/// background:start(text[, nameless])
int background_start(lua_State* lua) {
  check_object<io::BackgroundWrite>(lua, 1)->start(check_string(lua, 2), !lua_toboolean(lua, 3));
  return 0;
}

int background_is_done(lua_State* lua) {
  push(lua, check_object<io::BackgroundWrite>(lua, 1)->is_done());
  return 1;
}

/// background:join(): collective, what failed on one rank fails on all
int background_join(lua_State* lua) {
  const auto background = check_object<io::BackgroundWrite>(lua, 1);
  fail_together(*context(lua).world, [&] { background->join(); });
  return 0;
}

// Reading

int make_reader(lua_State* lua) {
  push_object(lua, std::make_shared<io::CheckpointReader>(*context(lua).world));
  return 1;
}

/// header(path) -> text, bytes of the file
int header(lua_State* lua) {
  const io::SafetensorsText text = io::read_safetensors_text(check_string(lua, 1));
  push(lua, text.header);
  push(lua, text.file_bytes);
  return 2;
}

/// reader:add(name, path, header, bytes)
int reader_add(lua_State* lua) {
  check_object<io::CheckpointReader>(lua, 1)->add(check_string(lua, 2), check_string(lua, 3),
                                                  {check_string(lua, 4), check_int(lua, 5)});
  return 0;
}

/// reader:describe(file, name) -> a tensor of device "meta" with the shape and dtype of what is stored, or nil
int reader_describe(lua_State* lua) {
  const io::StoredTensor* stored =
      check_object<io::CheckpointReader>(lua, 1)->find(check_string(lua, 2), check_string(lua, 3));
  stored ? push(lua, at::empty(stored->shape, at::TensorOptions(stored->dtype).device(at::kMeta))) : lua_pushnil(lua);
  return 1;
}

/// reader:read_into(file, name, target), of the same shape
int reader_read_into(lua_State* lua) {
  check_object<io::CheckpointReader>(lua, 1)->read_into(check_string(lua, 2), check_string(lua, 3),
                                                        check_tensor(lua, 4));
  return 0;
}

/// reader:read_alone(file, name, target), of the same shape; not collective
int reader_read_alone(lua_State* lua) {
  check_object<io::CheckpointReader>(lua, 1)->read_alone(check_string(lua, 2), check_string(lua, 3),
                                                         check_tensor(lua, 4));
  return 0;
}

/// reader:read_block(file, name, target): what is stored is this rank's block of it; not collective
int reader_read_block(lua_State* lua) {
  check_object<io::CheckpointReader>(lua, 1)->read_block(check_string(lua, 2), check_string(lua, 3),
                                                         check_tensor(lua, 4));
  return 0;
}

/// reader:read(file, name, like): a new tensor, placed as `like` where that is a ShardTensor of the shape; else plain,
/// on the CPU.
int reader_read(lua_State* lua) {
  const auto reader = check_object<io::CheckpointReader>(lua, 1);
  const std::string file = check_string(lua, 2), name = check_string(lua, 3);
  const io::StoredTensor& stored = *reader->find(file, name);
  const at::Tensor like = opt_tensor(lua, 4);
  at::Tensor result;
  if (like.defined() && is_shard_tensor(like) && like.sizes() == at::IntArrayRef(stored.shape)) {
    const at::NoGradGuard no_grad;
    result = at::empty_like(like, like.options().dtype(stored.dtype).requires_grad(false));
  } else {
    result = empty_block(stored.shape, stored.dtype);
  }
  reader->read_into(file, name, result);
  reader->flush();
  push(lua, result);
  return 1;
}

/// reader:verify(entries[, own_files]): collective
int reader_verify(lua_State* lua) {
  const auto reader = check_object<io::CheckpointReader>(lua, 1);
  const WithoutTimeLimit patient;
  reader->verify(check_string_list(lua, 2), lua_toboolean(lua, 3) != 0);
  return 0;
}

/// reader:names(entry) -> the names of its tensors, sorted
int reader_names(lua_State* lua) {
  push(lua, check_object<io::CheckpointReader>(lua, 1)->names(check_string(lua, 2)));
  return 1;
}

int reader_finish(lua_State* lua) {
  const auto reader = check_object<io::CheckpointReader>(lua, 1);
  const WithoutTimeLimit patient;
  reader->finish();
  return 0;
}

const luaL_Reg kCheckpointFunctions[] = {
    {"find", guard<find>},
    {"list", guard<list<io::list_checkpoints>>},
    {"list_folders", guard<list<io::list_folders>>},
    {"settle", guard<with_folder<io::settle_checkpoint>>},
    {"exchange_names", guard<with_folder<io::exchange_checkpoint>>},
    {"put_in_place", guard<with_folder<io::put_checkpoint_in_place>>},
    {"discard", guard<with_folder<io::discard_checkpoint>>},
    {"now", guard<now>},
    {"identity", guard<identity>},
    {"save", guard<save_whole>},
    {"open", guard<open_whole>},
    {"read_text", guard<read_text>},
    {"is_entry_name", guard<is_entry_name>},
    {"own_writer", guard<make_own_writer>},
    {"reader", guard<make_reader>},
    {"header", guard<header>},
    {"block", guard<block>},
    {"exchange", guard<exchange>},
    {nullptr, nullptr},
};
const luaL_Reg writer_methods[] = {
    {"add", guard<writer_add>},
    {"create", guard<call<io::CheckpointWriter, &io::CheckpointWriter::create>>},
    {"write_all", guard<call<io::CheckpointWriter, &io::CheckpointWriter::write>>},
    {"copy", guard<writer_copy>},
    {nullptr, nullptr},
};
const luaL_Reg background_methods[] = {
    {"start", guard<background_start>},
    {"is_done", guard<background_is_done>},
    {"join", guard<background_join>},
    {nullptr, nullptr},
};
const luaL_Reg saving_methods[] = {
    {"wait", guard<saving_wait>},
    {"is_done", guard<saving_is_done>},
    {nullptr, nullptr},
};
const luaL_Reg reader_methods[] = {
    {"add", guard<reader_add>},
    {"names", guard<reader_names>},
    {"describe", guard<reader_describe>},
    {"read_into", guard<reader_read_into>},
    {"read_alone", guard<reader_read_alone>},
    {"read_block", guard<reader_read_block>},
    {"read", guard<reader_read>},
    {"verify", guard<reader_verify>},
    {"finish", guard<reader_finish>},
    {nullptr, nullptr},
};

const Binding checkpoint_binding("checkpoint", [](lua_State* lua) {
  define_object<io::CheckpointWriter>(lua, writer_methods);
  define_object<io::BackgroundWrite>(lua, background_methods);
  define_object<io::CheckpointSaving>(lua, saving_methods);
  define_object<io::CheckpointReader>(lua, reader_methods);
  lua_newtable(lua);
  add_functions(lua, kCheckpointFunctions);
  set_field(lua, "format", io::kCheckpointFormat);
  lua_setfield(lua, -2, "_checkpoint_files");
});

}  // namespace

}  // namespace moonhalo::scripting
