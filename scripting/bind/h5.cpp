// SPDX-License-Identifier: Apache-2.0
// Files of fields: mh.h5, which writes HDF5 and NetCDF-4, and reads NetCDF-3 and Zarr too.
#include "moonhalo/scripting/bind/h5.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/fields/reader.h"
#include "moonhalo/io/fields/strings.h"
#include "moonhalo/io/formats/dataset_info.h"
#include "moonhalo/scripting/bind/nested_list.h"

namespace moonhalo::scripting {

std::optional<io::Selection> to_selection(lua_State* lua, int index) {
  if (const auto dataset = to_object<io::Dataset>(lua, index)) return io::Selection(*dataset);
  if (const auto selection = to_object<io::Selection>(lua, index)) return *selection;
  return std::nullopt;
}

namespace {

using io::AttributeValue;

void push_value(lua_State* lua, const AttributeValue& value) {
  std::visit([lua](const auto& held) { push(lua, held); }, value);
}

void push_attributes(lua_State* lua, const io::Attributes& attributes) {
  lua_createtable(lua, 0, static_cast<int>(attributes.size()));
  for (const auto& [name, value] : attributes) {
    push_value(lua, value);
    lua_setfield(lua, -2, name.c_str());
  }
}

/// A list of one kind: strings, integers, or numbers of which some are none.
AttributeValue check_values(lua_State* lua, int index) {
  bool strings = false, integers = true;
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  for (lua_Integer i = 1; i <= count; ++i) {
    const int type = lua_rawgeti(lua, index, i);
    const bool first_string = i == 1 && type == LUA_TSTRING;
    TORCH_CHECK_TYPE(type == LUA_TSTRING ? first_string || strings : type == LUA_TNUMBER && !strings,
                     "set_attr: element ", i, " of a list is ", describe(lua, -1),
                     "\n  have  attributes that are lists of strings, or of numbers",
                     "\n  fix   give one kind; 0 and 1 for booleans, and write() for tables of several dims");
    strings = strings || first_string;
    integers = integers && lua_isinteger(lua, -1) != 0;
    lua_pop(lua, 1);
  }
  lua_Integer keys = 0;
  for (lua_pushnil(lua); lua_next(lua, lua_absindex(lua, index)) != 0; lua_pop(lua, 1)) ++keys;
  TORCH_CHECK_TYPE(keys == count, "set_attr: a table with keys is not an attribute\n  have  ", describe(lua, index),
                   "\n  fix   give each as an attribute of its own, or a list");
  if (strings) return check_string_list(lua, index);
  if (integers && count > 0) return check_int_list(lua, index);
  return check_number_list(lua, index);
}

AttributeValue check_value(lua_State* lua, int index) {
  switch (lua_type(lua, index)) {
    case LUA_TBOOLEAN:
      return check_bool(lua, index);
    case LUA_TSTRING:
      return check_string(lua, index);
    case LUA_TNUMBER:
      if (lua_isinteger(lua, index)) return check_int(lua, index);
      return check_number(lua, index);
    case LUA_TTABLE:
      return check_values(lua, index);
    default:
      argument_error(lua, index, "an attribute: a string, number, boolean, or a list of strings or of numbers");
  }
}

io::Attributes check_attributes(lua_State* lua, int index) {
  io::Attributes attributes;
  if (is_nil(lua, index)) return attributes;
  if (!lua_istable(lua, index)) argument_error(lua, index, "a table of attributes");
  const int table = lua_absindex(lua, index);
  lua_pushnil(lua);
  while (lua_next(lua, table) != 0) {
    lua_pushvalue(lua, -2);  // converting a key in place would confuse lua_next
    const std::string name = check_string(lua, -1);
    lua_pop(lua, 1);
    attributes[name] = check_value(lua, lua_gettop(lua));
    lua_pop(lua, 1);
  }
  return attributes;
}

/// Key of the registry table of the script's files, without keeping them alive.
const char kFilesKey = 0;

void push_files(lua_State* lua) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kFilesKey) == LUA_TTABLE) return;
  lua_pop(lua, 1);
  lua_newtable(lua);
  lua_createtable(lua, 0, 1);
  set_field(lua, "__mode", "k");
  lua_setmetatable(lua, -2);
  lua_pushvalue(lua, -1);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kFilesKey);
}

int open_as(lua_State* lua, bool is_dry) {
  const bool has_mode = !lua_istable(lua, 2);
  const Options options(lua, has_mode ? 3 : 2, "open", {"allow_external"});
  const std::string mode = has_mode && !is_nil(lua, 2) ? check_string(lua, 2) : "r";
  push_object(lua, std::make_shared<io::File>(
                       io::open(check_string(lua, 1), mode,
                                {.allow_external = options.get_bool("allow_external", false), .is_dry = is_dry})));
  push_files(lua);
  lua_pushvalue(lua, -2);
  lua_pushboolean(lua, 1);
  lua_rawset(lua, -3);
  lua_pop(lua, 1);
  return 1;
}

/// mh.h5.open(path, mode = "r", {allow_external = false}) -> File
///   Opens a file: HDF5 and NetCDF-4 to read or write, NetCDF-3, Zarr and .npy to read. file.name or file["group/name"]
///   is a dataset, whose slices are read when read() or mh.scatter_tensor is called. A file that is written appears
///   under its name when it is closed. If all ranks open one path to write, all of them write the same datasets, or
///   one rank alone writes any.
///   path        string      of the file, or of the folder of a Zarr store
///   mode        "r"|"w"|"a"   read, write a new file, or change one
///   allow_external   boolean   also follows links to other files
///   returns     File        `local file <close> = mh.h5.open(path)` closes it at the end of the block
///   collective  no to read; a file that is written by blocks is opened on all ranks
///   errors      ValueError: the file cannot be read, or is of another format
///   example
///     local path = ("%s/open%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.arange(6):reshape{2, 3}, {attrs = {units = "K"}})
///     out:close()
///     local file <close> = mh.h5.open(path)
///     file.t.shape, file.t.units, file.t["1, :2"]:read():tolist()    --> {2, 3}  K  {3, 4}
int open(lua_State* lua) { return open_as(lua, /*is_dry=*/false); }

/// mh._open_dry(path, mode, options): mh.h5.open of a dry run, which makes no file (prelude/dry_run.lua).
int open_dry(lua_State* lua) { return open_as(lua, /*is_dry=*/true); }

std::shared_ptr<io::File> file(lua_State* lua) { return check_object<io::File>(lua, 1); }

/// The type's methods are known to the caller of an __index, which says at 3 whether one of them is near.
void refuse_slip(lua_State* lua, const char* type) {
  const std::string near = check_string(lua, 3);
  TORCH_CHECK_VALUE(near.empty(), type, ": no attribute, method or dataset '", check_string(lua, 2), "'", near);
}

/// file:keys(group = "/") -> {string}
///   The names in a group.
///   group       string      its path in the file
///   returns     {string}    of datasets and groups
///   collective  no
///   example
///     local path = ("%s/keys%d.h5"):format(folder, mh.rank())
///     local out <close> = mh.h5.open(path, "w")
///     out:write("a", 1)
///     out:keys()    --> {"a"}
int file_keys(lua_State* lua) {
  push(lua, file(lua)->keys(is_nil(lua, 2) ? "/" : check_string(lua, 2)));
  return 1;
}

/// file:datasets() -> {string}
///   The paths of all datasets of the file, those in groups too.
///   returns     {string}    paths
///   collective  no
///   example
///     local path = ("%s/datasets%d.h5"):format(folder, mh.rank())
///     local out <close> = mh.h5.open(path, "w")
///     out:write("group/a", 1)
///     #out:datasets()    --> 1
int file_datasets(lua_State* lua) {
  push(lua, file(lua)->datasets());
  return 1;
}

/// file:has(name) -> boolean
///   Whether the file has a dataset or group of this path.
///   name        string      its path in the file
///   returns     boolean     false where it is missing
///   collective  no
///   example
///     local path = ("%s/has%d.h5"):format(folder, mh.rank())
///     local out <close> = mh.h5.open(path, "w")
///     out:write("a", 1)
///     out:has("a"), out:has("b")    --> true  false
int file_has(lua_State* lua) {
  push(lua, file(lua)->has(check_string(lua, 2)));
  return 1;
}

io::WriteOptions check_write_options(lua_State* lua, int index, const char* call) {
  const Options options(lua, index, call, {"attrs", "dims", "chunks", "compression", "replace", "like"});
  io::WriteOptions write;
  options.push("attrs");
  write.attrs = check_attributes(lua, lua_gettop(lua));
  lua_pop(lua, 1);
  options.push("dims");
  if (!is_nil(lua, -1)) write.dims = check_string_list(lua, -1);
  lua_pop(lua, 1);
  write.chunks = options.get_int_list("chunks", {});
  write.compression = static_cast<int>(options.get_int("compression", 0));
  write.replace = options.get_bool("replace", false);
  options.push("like");
  if (!is_nil(lua, -1)) {
    const auto like = to_selection(lua, -1);
    if (!like) argument_error(lua, index, "a table whose `like` is a dataset or a selection");
    write.like = std::make_shared<io::Selection>(*like);
  }
  lua_pop(lua, 1);
  return write;
}

/// Returns what write() and append() are given as data: a tensor; a number or boolean, which is a dataset without dims;
/// a nested list. Numbers keep their 64 bits, where mh.tensor would round them to float32.
at::Tensor check_data(lua_State* lua, int index, const char* call) {
  const int type = lua_type(lua, index);
  TORCH_CHECK_TYPE(type != LUA_TSTRING, call, ": the data are text\n  have  ", describe(lua, index),
                   "\n  fix   file:set_attr(name, text) writes it as an attribute; datasets hold numbers");
  if (type == LUA_TBOOLEAN) return at::scalar_tensor(check_scalar(lua, index), at::kBool);
  if (type == LUA_TNUMBER)
    return at::scalar_tensor(check_scalar(lua, index), lua_isinteger(lua, index) ? at::kLong : at::kDouble);
  if (type == LUA_TTABLE && luaL_getmetafield(lua, index, "__name") == LUA_TNIL)
    return NestedList(lua, call).read(index);
  return check_tensor(lua, index);
}

/// file:write(name, data, {attrs = nil, dims = nil, like = nil, chunks = nil, compression = 0,
///     replace = false}) -> nothing
///   Writes a dataset. Of a ShardTensor every rank writes its own block into the one file.
///   name        string      its path in the file; groups are made
///   data        Tensor|number|boolean|table   numbers and nested lists become int64, float64 or bool
///   attrs       table?      attributes by name: strings, numbers, booleans, lists
///   dims        {string}?   names of the dims; a dataset of that name becomes their coordinate
///   like        Dataset|Selection?   takes attributes and dims from this dataset
///   chunks      {integer}?   sizes of a chunk; nil chooses them
///   compression   integer   0 to 9, of gzip
///   replace     boolean     whether a dataset of that name is replaced
///   returns     nothing
///   collective  over the mesh of a ShardTensor; as soon as the file has such a dataset, over the same ranks for plain
///     tensors, too
///   errors      ValueError: the name is there already, the file is open to read, or the disk refuses
///   example
///     local path = ("%s/write%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     mh.h5.open(path).t.dims    --> {"y", "x"}
int file_write(lua_State* lua) {
  const io::WriteOptions options = check_write_options(lua, 4, "write");
  file(lua)->write(check_string(lua, 2), check_data(lua, 3, "write"), options);
  return 0;
}

/// file:append(name, data, {attrs = nil, dims = nil, like = nil, chunks = nil, compression = 0,
///     replace = false}) -> nothing
///   Adds rows at the end of a dataset, which the first append makes.
///   name        string      its path in the file
///   data        Tensor|number|boolean|table   dim 0 is the one that grows
///   attrs       table?      attributes by name, at the first append
///   dims        {string}?   names of the dims, at the first append
///   like        Dataset|Selection?   takes attributes and dims from this dataset
///   chunks      {integer}?   sizes of a chunk; nil chooses them
///   compression   integer   0 to 9, of gzip
///   replace     boolean     whether a dataset of that name is replaced
///   returns     nothing
///   collective  over the mesh of a ShardTensor, else no
///   errors      ValueError: rows of another shape, or the disk refuses
///   example
///     local path = ("%s/append%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:append("t", mh.ones{1, 3})
///     out:append("t", mh.ones{2, 3})
///     out:close()
///     mh.h5.open(path).t.shape    --> {3, 3}
int file_append(lua_State* lua) {
  const io::WriteOptions options = check_write_options(lua, 4, "append");
  file(lua)->append(check_string(lua, 2), check_data(lua, 3, "append"), options);
  return 0;
}

/// file:flush() -> string
///   Writes everything to the disk, for others who read while the file grows.
///   returns     string      the path of the unfinished file, which has another name until close()
///   collective  over the mesh of ShardTensors that were written, else no
///   example
///     local path = ("%s/flush%d.h5"):format(folder, mh.rank())
///     local out <close> = mh.h5.open(path, "w")
///     out:write("a", 1)
///     mh.files.exists(out:flush())    --> true
int file_flush(lua_State* lua) {
  push(lua, file(lua)->flush());
  return 1;
}

/// file:set_attr(name, value, object = "/") -> nothing
///   Writes an attribute of the file, or of a dataset or group.
///   name        string      of the attribute
///   value       string|number|boolean|table   a table is a list of strings or of numbers
///   object      string      path of the dataset or group
///   returns     nothing
///   collective  no; all ranks that write the file by blocks call it
///   errors      ValueError: no such object, or the file is open to read
///   example
///     local path = ("%s/attr%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:set_attr("title", "winds")
///     out:close()
///     mh.h5.open(path).attrs.title    --> winds
int file_set_attr(lua_State* lua) {
  file(lua)->set_attr(check_string(lua, 2), check_value(lua, 3), is_nil(lua, 4) ? "/" : check_string(lua, 4));
  return 0;
}

/// file:close() -> nothing
///   Closes the file. One that was written gets its name now.
///   returns     nothing
///   collective  over the mesh of ShardTensors that were written, else no
///   errors      ValueError: the disk refuses; RuntimeError: ranks wrote different plain datasets into one path
///   example
///     local path = ("%s/close%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     local before = mh.files.exists(path)
///     out:close()
///     before, mh.files.exists(path)    --> false  true
int file_close(lua_State* lua) {
  file(lua)->close();
  return 0;
}

/// Leaving the scope of `local out <close>`: an error on the way means that half is missing.
int file_leave(lua_State* lua) {
  if (is_nil(lua, 2)) {
    file(lua)->close();
  } else {
    file(lua)->discard();
  }
  return 0;
}

/// file:discard() -> nothing
///   Closes the file and removes what was written. An error in the block of `local out <close>` does the same.
///   returns     nothing
///   collective  no
///   example
///     local path = ("%s/discard%d.h5"):format(folder, mh.rank())
///     mh.h5.open(path, "w"):discard()
///     mh.files.exists(path)    --> false
int file_discard(lua_State* lua) {
  file(lua)->discard();
  return 0;
}

/// file.path -> string
///   The path with which the file was opened.
///   example
///     local path = ("%s/path%d.h5"):format(folder, mh.rank())
///     local out <close> = mh.h5.open(path, "w")
///     out.path == path    --> true
int file_path(lua_State* lua) {
  push(lua, file(lua)->path());
  return 1;
}

/// file.attrs -> table
///   The attributes of the file by name.
///   example
///     local path = ("%s/attrs_of_file%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:set_attr("title", "winds")
///     out:close()
///     mh.h5.open(path).attrs    --> {title = "winds"}
int file_attrs(lua_State* lua) {
  push_attributes(lua, file(lua)->attrs());
  return 1;
}

int push_member(lua_State* lua, const io::File& file, const std::string& name) {
  if (file.is_group(name)) {
    push_object(lua, std::make_shared<H5Group>(H5Group{file, name}));
  } else {
    push_object(lua, std::make_shared<io::Dataset>(file[name]));
  }
  return 1;
}

/// file["name"]: a dataset or a group.
int file_index(lua_State* lua) {
  const std::string name = check_string(lua, 2);
  if (!file(lua)->has(name)) refuse_slip(lua, "File");
  return push_member(lua, *file(lua), name);
}

int file_string(lua_State* lua) {
  push(lua, "File(" + file(lua)->path() + ")");
  return 1;
}

std::shared_ptr<H5Group> group(lua_State* lua) { return check_object<H5Group>(lua, 1); }

int group_keys(lua_State* lua) {
  push(lua, group(lua)->file.keys(group(lua)->name));
  return 1;
}

int group_attrs(lua_State* lua) {
  push_attributes(lua, group(lua)->file.attrs(group(lua)->name));
  return 1;
}

int group_name(lua_State* lua) {
  push(lua, group(lua)->name);
  return 1;
}

/// group["name"]: a dataset or a group of this group.
int group_index(lua_State* lua) {
  const std::string name = group(lua)->name + "/" + check_string(lua, 2);
  if (!group(lua)->file.has(name)) refuse_slip(lua, "Group");
  return push_member(lua, group(lua)->file, name);
}

int group_string(lua_State* lua) {
  push(lua, "Group(" + group(lua)->name + ")");
  return 1;
}

std::shared_ptr<io::Dataset> dataset(lua_State* lua) { return check_object<io::Dataset>(lua, 1); }

/// The dataset or selection whose method is called.
io::Selection this_selection(lua_State* lua) {
  std::optional<io::Selection> selection = to_selection(lua, 1);
  if (!selection) argument_error(lua, 1, "a dataset");
  return *std::move(selection);
}

/// dataset:read({dtype = nil, decode = false}) -> Tensor
/// selection:read({dtype = nil, decode = false}) -> Tensor
///   The values, as a plain tensor. mh.scatter_tensor reads blocks instead.
///   dtype       string?     converts them
///   decode      boolean     applies scale_factor, add_offset and fill value (NaN)
///   returns     Tensor      of the shape of the dataset or selection
///   collective  no
///   errors      ValueError: values that are not numbers (strings()), or a damaged file
///   example
///     local path = ("%s/read%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.arange(5))
///     out:close()
///     mh.h5.open(path).t["1:3"]:read{dtype = "float32"}:tolist()    --> {1.0, 2.0}
int read(lua_State* lua) {
  const io::Selection selection = this_selection(lua);
  const Options options(lua, 2, "read", {"dtype", "decode"});
  const io::ReadOptions required{.dtype = options.get_dtype("dtype"), .decode = options.get_bool("decode", false)};
  push(lua, selection.read(required));
  return 1;
}

/// dataset:strings() -> {string}
/// selection:strings() -> {string}
///   The elements of a dataset of strings, row by row.
///   returns     {string}    one for each element
///   collective  no
///   errors      TypeError: the elements are not strings
///   example
///     local path = ("%s/strings%d.zarr"):format(folder, mh.rank())
///     mh.files.make_folder(path)
///     for name, bytes in pairs {["0"] = "N1S2", [".zarray"] = [[{"zarr_format": 2, "dtype": "|S2", "shape": [2],
///       "chunks": [2], "fill_value": null, "compressor": null, "filters": null, "order": "C"}]]} do
///       local out <close> = io.open(path .. "/" .. name, "w")
///       out:write(bytes)
///     end
///     local file = mh.h5.open(path)
///     local names = file[file:datasets()[1]]
///     names:strings(), names["1:"]:strings()    --> {"N1", "S2"}  {"S2"}
int strings(lua_State* lua) {
  push(lua, io::read_strings(this_selection(lua)));
  return 1;
}

/// dataset.shape -> {integer}
/// selection.shape -> {integer}
///   The sizes of the dims.
///   example
///     local path = ("%s/shape%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.shape    --> {2, 3}
int shape(lua_State* lua) {
  push(lua, to_selection(lua, 1)->shape());
  return 1;
}

/// dataset.ndim -> integer
/// selection.ndim -> integer
///   The number of dims.
///   example
///     local path = ("%s/ndim%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.ndim    --> 2
int ndim(lua_State* lua) {
  push(lua, to_selection(lua, 1)->ndim());
  return 1;
}

/// dataset.dims -> {string}
/// selection.dims -> {string}
///   The names of the dims; "" for a dim without one.
///   example
///     local path = ("%s/dims%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.dims    --> {"y", "x"}
int dims(lua_State* lua) {
  push(lua, to_selection(lua, 1)->dims());
  return 1;
}

/// dataset.dtype -> string?
/// selection.dtype -> string?
///   The type of the numbers, as a tensor has them; nil for other elements.
///   example
///     local path = ("%s/dtype%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.dtype    --> float32
int dtype(lua_State* lua) {
  push(lua, to_selection(lua, 1)->dataset().dtype());
  return 1;
}

/// dataset.attrs -> table
/// selection.attrs -> table
///   The attributes by name: strings, numbers, booleans and lists.
///   example
///     local path = ("%s/attrs%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.attrs.units    --> K
int attrs(lua_State* lua) {
  push_attributes(lua, to_selection(lua, 1)->dataset().attrs());
  return 1;
}

/// dataset.name -> string
/// selection.name -> string
///   The path in the file.
///   example
///     local path = ("%s/name%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.name:match("%w+$")    --> t
int data_name(lua_State* lua) {
  push(lua, to_selection(lua, 1)->dataset().name());
  return 1;
}

/// dataset.chunks -> {integer}?
/// selection.chunks -> {integer}?
///   The sizes of a chunk; nil for a dataset that is not stored in chunks.
///   example
///     local path = ("%s/chunks%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.chunks    --> nil
int chunks(lua_State* lua) {
  const auto& sizes = to_selection(lua, 1)->dataset().chunks();
  if (sizes.empty()) {
    lua_pushnil(lua);
  } else {
    push(lua, sizes);
  }
  return 1;
}

/// dataset.rows_together -> {integer}?
/// selection.rows_together -> {integer}?
///   The shape of the rows that are read together; nil for a dataset in chunks.
///   example
///     local path = ("%s/rows_together%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {chunks = {1, 3}})
///     out:close()
///     mh.h5.open(path).t.rows_together    --> nil
int rows_together(lua_State* lua) {
  const io::Dataset dataset = to_selection(lua, 1)->dataset();
  const auto rows = dataset.info().reversed ? std::vector<int64_t>() : dataset.rows_together();
  rows.empty() ? lua_pushnil(lua) : push(lua, rows);
  return 1;
}

/// dataset.filters -> {string}
/// selection.filters -> {string}
///   How chunks are compressed.
///   example
///     local path = ("%s/filters%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.filters    --> {}
int filters(lua_State* lua) {
  push(lua, to_selection(lua, 1)->dataset().filters());
  return 1;
}

/// dataset.units -> string
/// selection.units -> string
///   The attribute units; "" if there is none.
///   example
///     local path = ("%s/units%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.units    --> K
int units(lua_State* lua) {
  push(lua, to_selection(lua, 1)->dataset().units());
  return 1;
}

/// dataset.is_numeric -> boolean
/// selection.is_numeric -> boolean
///   Whether the elements are numbers.
///   example
///     local path = ("%s/is_numeric%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.is_numeric    --> true
int is_numeric(lua_State* lua) {
  push(lua, to_selection(lua, 1)->dataset().info().dtype.has_value());
  return 1;
}

/// dataset.has_values -> boolean
/// selection.has_values -> boolean
///   False for a dimension of NetCDF that has a length and no values.
///   example
///     local path = ("%s/has_values%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.has_values    --> true
int has_values(lua_State* lua) {
  push(lua, !to_selection(lua, 1)->dataset().is_bare_dimension());
  return 1;
}

/// Strings of numbers and signs select rows; no other is one of them.
bool names_rows(const std::string& key) { return key.find_first_not_of("0123456789-:., ") == std::string::npos; }

/// No text that selects rows is a word, but None for a new dim.
bool is_word(const std::string& key) {
  return key != "None" &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isalpha(c) != 0 || c == '_'; });
}

/// A dataset's member is a dataset, that of a selection a selection.
int push_member_of(lua_State* lua, const std::string& name) {
  if (const auto whole = to_object<io::Dataset>(lua, 1)) {
    push_object(lua, std::make_shared<io::Dataset>(whole->member(name)));
  } else {
    push_object(lua, std::make_shared<io::Selection>(this_selection(lua).member(name)));
  }
  return 1;
}

/// dataset:member(name) -> Dataset
/// selection:member(name) -> Selection
///   A member of a compound type, with the same dims and attributes. data["name"] is the same where no method has that
///   name.
///   name        string      one of data.members
///   returns     Dataset|Selection   read() gives its values
///   collective  no
///   errors      ValueError: there is no such member, or the type is not a compound
///   example
///     local path = ("%s/member%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.arange(3))
///     out:close()
///     local t = mh.h5.open(path).t
///     t.members == nil and not pcall(t.member, t, "u")    --> true
int member(lua_State* lua) {
  this_selection(lua);
  return push_member_of(lua, check_string(lua, 2));
}

/// data["0:100, :, ::2"], data[3]; data["u"]: a member of a compound.
int data_index(lua_State* lua) {
  const auto index = to_int(lua, 2);
  const std::string key = index ? std::to_string(*index) : check_string(lua, 2);
  const io::Selection selection = *to_selection(lua, 1);
  const auto& members = selection.dataset().members();
  const bool is_member = std::find(members.begin(), members.end(), key) != members.end();
  if (!index && !is_member && is_word(key)) refuse_slip(lua, "Dataset");
  if (!index && !members.empty() && (is_member || !names_rows(key))) return push_member_of(lua, key);
  push_object(lua, std::make_shared<io::Selection>(selection.select(key)));
  return 1;
}

/// dataset.members -> {string}?
/// selection.members -> {string}?
///   The names of the members of a compound; nil for other types.
///   example
///     local path = ("%s/members%d.h5"):format(folder, mh.rank())
///     local out = mh.h5.open(path, "w")
///     out:write("t", mh.ones{2, 3}, {dims = {"y", "x"}, attrs = {units = "K"}})
///     out:close()
///     local t = mh.h5.open(path).t
///     t.members    --> nil
int members(lua_State* lua) {
  const auto& names = to_selection(lua, 1)->dataset().members();
  names.empty() ? lua_pushnil(lua) : push(lua, names);
  return 1;
}

int dataset_string(lua_State* lua) {
  push(lua, "Dataset(" + dataset(lua)->name() + ", " + dataset(lua)->type_name() + " " +
                shape_string(dataset(lua)->shape()) + ")");
  return 1;
}

int selection_string(lua_State* lua) {
  const auto selection = check_object<io::Selection>(lua, 1);
  push(lua, "Selection(" + selection->dataset().name() + ", " + shape_string(selection->shape()) + ")");
  return 1;
}

const luaL_Reg kH5Functions[] = {{"open", guard<open>}, {nullptr, nullptr}};
const luaL_Reg kDryFunctions[] = {{"_open_dry", guard<open_dry>}, {nullptr, nullptr}};
const luaL_Reg kFileMethods[] = {{"keys", guard<file_keys>},         {"datasets", guard<file_datasets>},
                                 {"has", guard<file_has>},           {"write", guard<file_write>},
                                 {"append", guard<file_append>},     {"flush", guard<file_flush>},
                                 {"set_attr", guard<file_set_attr>}, {"close", guard<file_close>},
                                 {"discard", guard<file_discard>},   {nullptr, nullptr}};
const luaL_Reg kFileGetters[] = {{"path", guard<file_path>}, {"attrs", guard<file_attrs>}, {nullptr, nullptr}};
const luaL_Reg kFileMeta[] = {{"__index", guard<file_index>},
                              {"__tostring", guard<file_string>},
                              {"__close", guard<file_leave>},
                              {nullptr, nullptr}};
const luaL_Reg kGroupMethods[] = {{"keys", guard<group_keys>}, {nullptr, nullptr}};
const luaL_Reg kGroupGetters[] = {{"attrs", guard<group_attrs>}, {"name", guard<group_name>}, {nullptr, nullptr}};
const luaL_Reg kGroupMeta[] = {
    {"__index", guard<group_index>}, {"__tostring", guard<group_string>}, {nullptr, nullptr}};
const luaL_Reg kDataMethods[] = {
    {"read", guard<read>}, {"strings", guard<strings>}, {"member", guard<member>}, {nullptr, nullptr}};
const luaL_Reg kDataGetters[] = {{"shape", guard<shape>},
                                 {"ndim", guard<ndim>},
                                 {"dims", guard<dims>},
                                 {"dtype", guard<dtype>},
                                 {"attrs", guard<attrs>},
                                 {"name", guard<data_name>},
                                 {"units", guard<units>},
                                 {"chunks", guard<chunks>},
                                 {"rows_together", guard<rows_together>},
                                 {"is_numeric", guard<is_numeric>},
                                 {"has_values", guard<has_values>},
                                 {"filters", guard<filters>},
                                 {"members", guard<members>},
                                 {nullptr, nullptr}};
const luaL_Reg kDatasetMeta[] = {
    {"__index", guard<data_index>}, {"__tostring", guard<dataset_string>}, {nullptr, nullptr}};
const luaL_Reg kSelectionMeta[] = {
    {"__index", guard<data_index>}, {"__tostring", guard<selection_string>}, {nullptr, nullptr}};

void open_h5(lua_State* lua) {
  define_object<io::File>(lua, kFileMethods, kFileGetters, kFileMeta);
  define_object<H5Group>(lua, kGroupMethods, kGroupGetters, kGroupMeta);
  define_object<io::Dataset>(lua, kDataMethods, kDataGetters, kDatasetMeta);
  define_object<io::Selection>(lua, kDataMethods, kDataGetters, kSelectionMeta);
  add_functions(lua, kDryFunctions);
  lua_createtable(lua, 0, 1);
  add_functions(lua, kH5Functions);
  lua_setfield(lua, -2, "h5");
}

const Binding h5_binding{"h5", open_h5};

}  // namespace

void discard_files(lua_State* lua) {
  push_files(lua);
  for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) {
    if (const auto file = to_object<io::File>(lua, -2)) file->discard();
  }
  lua_pop(lua, 1);
}

}  // namespace moonhalo::scripting
