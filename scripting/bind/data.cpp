// SPDX-License-Identifier: Apache-2.0
// Binds for scripting/lua/data the parts of io that it needs: finding files, frames, reading ahead, moments.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/file_version.h"
#include "moonhalo/io/fields/frame_queue.h"
#include "moonhalo/io/fields/moments.h"
#include "moonhalo/io/formats/find_files.h"
#include "moonhalo/scripting/bind/mesh.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<io::FrameReader> = "FrameReader";
template <>
inline constexpr const char* kObjectName<io::FrameQueue> = "FrameQueue";
template <>
inline constexpr const char* kObjectName<io::FrameQueue::Ticket> = "FrameTicket";

namespace {

/// Tensors that a script makes are on its device; these functions read numbers on the host.
at::Tensor on_host(const at::Tensor& tensor) { return tensor.defined() ? tensor.cpu() : tensor; }

/// _data.find_files(source): paths, by name.
int find_files(lua_State* lua) {
  push(lua, io::find_files(check_string(lua, 1)));
  return 1;
}

/// _data.file_version(path): a string that another one replaces when the file changes.
int file_version(lua_State* lua) {
  push(lua, io::file_version(check_string(lua, 1)));
  return 1;
}

/// _data.check_same(op, settings, text): ValueError on every rank unless all give the same text. Collective.
int check_same(lua_State* lua) {
  const std::string op = check_string(lua, 1), settings = check_string(lua, 2);
  check_same_on_all_ranks(*context(lua).world, op.c_str(), settings.c_str(), check_string(lua, 3));
  return 0;
}

/// _data.hash(text or tensor): 16 digits that stand for it (FNV-1a), of a tensor for its values.
int hash(lua_State* lua) {
  uint64_t value = 14695981039346656037ull;
  const auto add = [&](const char* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) value = (value ^ static_cast<unsigned char>(bytes[i])) * 1099511628211ull;
  };
  if (const at::Tensor* tensor = to_tensor(lua, 1)) {
    const at::Tensor data = tensor->to(at::kCPU).contiguous();
    add(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
  } else {
    const std::string text = check_string(lua, 1);
    add(text.data(), text.size());
  }
  std::string digits(16, '0');
  for (size_t i = digits.size(); i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  push(lua, digits);
  return 1;
}

/// Calls read() with each element of the list at `index` on the stack's top.
template <typename Read>
void for_list(lua_State* lua, int index, const Read& read) {
  if (!lua_istable(lua, index)) argument_error(lua, index, "a list");
  index = lua_absindex(lua, index);
  const auto count = static_cast<lua_Integer>(lua_rawlen(lua, index));
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(lua, index, i);
    read();
    lua_pop(lua, 1);
  }
}

std::vector<io::FrameSource> check_sources(lua_State* lua, int index) {
  std::vector<io::FrameSource> sources;
  for_list(lua, index, [&] {
    const Options one(
        lua, lua_gettop(lua), "reader",
        {"path", "dataset", "step_dim", "sample_dim", "channel_dims", "space_dims", "version", "values", "changes"});
    sources.push_back({.path = one.get_string("path", ""),
                       .dataset = one.get_string("dataset", ""),
                       .step_dim = one.get_int("step_dim", -1),
                       .sample_dim = one.get_int("sample_dim", -1),
                       .channel_dims = one.get_int_list("channel_dims", {}),
                       .space_dims = one.get_int_list("space_dims", {}),
                       .version = one.get_string("version", ""),
                       .values = one.get_tensor("values"),
                       .changes = one.get_int("changes", -1)});
  });
  return sources;
}

/// _data.reader(sources, first rows, ends of rows, dtype, cache bytes)
int make_field_reader(lua_State* lua) {
  const auto begins = check_int_list(lua, 2), ends = check_int_list(lua, 3);
  Box rows;
  for (size_t dim = 0; dim < begins.size(); ++dim) rows.push_back({begins[dim], ends.at(dim)});
  push_object(lua,
              std::make_shared<io::FrameReader>(check_sources(lua, 1), rows, check_dtype(lua, 4), check_int(lua, 5)));
  return 1;
}

std::vector<io::FramePlace> check_places(lua_State* lua, int index) {
  const at::Tensor rows = on_host(check_tensor(lua, index));
  TORCH_CHECK_VALUE(rows.dim() == 2 && rows.size(1) == 3 && rows.scalar_type() == at::kLong,
                    "places: expected int64 [n, 3]");
  const auto from = rows.accessor<int64_t, 2>();
  std::vector<io::FramePlace> places;
  for (int64_t i = 0; i < rows.size(0); ++i) places.push_back({from[i][0], from[i][1], from[i][2]});
  return places;
}

/// reader:moments(places, channels[, weights[, before]]): of these frames, in their order; with `before`, places too,
/// of what they are more than those.
int reader_moments(lua_State* lua) {
  const auto reader = check_object<io::FrameReader>(lua, 1);
  const int64_t channels = check_int(lua, 3);
  const at::Tensor weights = on_host(opt_tensor(lua, 4));
  at::Tensor moments = io::no_moments(channels);
  std::vector<int64_t> shape = {channels};
  for (const Interval& rows : reader->rows()) shape.push_back(rows.size());
  const at::Tensor frame = at::empty(shape, reader->dtype()), other = at::empty(shape, reader->dtype());
  const auto places = check_places(lua, 2);
  const auto before = is_nil(lua, 5) ? std::vector<io::FramePlace>() : check_places(lua, 5);
  for (size_t i = 0; i < places.size(); ++i) {
    reader->read(places[i], frame);
    if (!before.empty()) {
      reader->read(before.at(i), other);
      frame.sub_(other);
    }
    io::merge_moments(moments, io::frame_moments(frame, weights));
  }
  push(lua, moments);
  return 1;
}

/// reader:read(places, channels): [places, channels, rows...].
int reader_frames(lua_State* lua) {
  const auto reader = check_object<io::FrameReader>(lua, 1);
  const auto places = check_places(lua, 2);
  std::vector<int64_t> shape = {static_cast<int64_t>(places.size()), check_int(lua, 3)};
  for (const Interval& rows : reader->rows()) shape.push_back(rows.size());
  const at::Tensor frames = at::empty(shape, reader->dtype());
  for (size_t i = 0; i < places.size(); ++i) reader->read(places[i], frames[static_cast<int64_t>(i)]);
  push(lua, frames);
  return 1;
}

/// _data.frame_moments(frames, weights): of [frames, channels, space...], in their order.
int frame_moments(lua_State* lua) {
  const at::Tensor frames = on_host(check_tensor(lua, 1)).contiguous(), weights = on_host(opt_tensor(lua, 2));
  at::Tensor moments = io::no_moments(frames.size(1));
  for (int64_t i = 0; i < frames.size(0); ++i) io::merge_moments(moments, io::frame_moments(frames[i], weights));
  push(lua, moments);
  return 1;
}

/// _data.merge_moments(parts): of [parts, channels, moments], in their order.
int merge_moments(lua_State* lua) {
  const at::Tensor parts = on_host(check_tensor(lua, 1));
  at::Tensor moments = io::no_moments(parts.size(1));
  for (int64_t i = 0; i < parts.size(0); ++i) io::merge_moments(moments, parts[i]);
  push(lua, moments);
  return 1;
}

/// _data.queue(fields): fields = {{name, reader, channels, mean, std, may_be_missing}, ...}
int make_queue(lua_State* lua) {
  std::vector<io::FrameField> fields;
  for_list(lua, 1, [&] {
    const Options one(lua, lua_gettop(lua), "queue", {"name", "reader", "channels", "mean", "std", "may_be_missing"});
    one.push("reader");
    const auto reader = check_object<io::FrameReader>(lua, lua_gettop(lua));
    lua_pop(lua, 1);
    fields.push_back({one.get_string("name", ""), reader, one.get_int("channels", 1), one.get_tensor("mean"),
                      one.get_tensor("std"), one.get_bool("may_be_missing", true)});
  });
  push_object(lua, std::make_shared<io::FrameQueue>(std::move(fields)));
  return 1;
}

/// queue:submit(requests) -> ticket; requests = {{field (0), places}, ...}
int submit(lua_State* lua) {
  std::vector<io::FrameRequest> requests;
  for_list(lua, 2, [&] {
    const int table = lua_gettop(lua);
    lua_rawgeti(lua, table, 1);
    lua_rawgeti(lua, table, 2);
    requests.push_back({check_int(lua, table + 1), check_places(lua, table + 2)});
    lua_pop(lua, 2);
  });
  push_object(lua, check_object<io::FrameQueue>(lua, 1)->submit(std::move(requests)));
  return 1;
}

/// ticket:wait() -> list of tensors. Where any rank failed to read, its error on every rank. Collective.
int wait(lua_State* lua) {
  const auto ticket = check_object<io::FrameQueue::Ticket>(lua, 1);
  std::vector<at::Tensor> frames;
  fail_together(*context(lua).world, [&] { frames = ticket->wait(); });
  push(lua, frames);
  return 1;
}

/// _data.from_block(block, mesh, placements, global shape): the ShardTensor of blocks whose sizes all ranks know, which
/// from_local would exchange. No communication.
int tensor_of_block(lua_State* lua) {
  const MeshPtr mesh = check_object<DeviceMesh>(lua, 2);
  push(lua, from_local(check_tensor(lua, 1), make_spec(mesh, check_int_list(lua, 4), check_placements(lua, 3))));
  return 1;
}

const luaL_Reg kDataFunctions[] = {{"find_files", guard<find_files>},       {"file_version", guard<file_version>},
                                   {"check_same", guard<check_same>},       {"hash", guard<hash>},
                                   {"reader", guard<make_field_reader>},    {"queue", guard<make_queue>},
                                   {"merge_moments", guard<merge_moments>}, {"frame_moments", guard<frame_moments>},
                                   {"from_block", guard<tensor_of_block>},  {nullptr, nullptr}};
const luaL_Reg kReaderMethods[] = {
    {"moments", guard<reader_moments>}, {"read", guard<reader_frames>}, {nullptr, nullptr}};
const luaL_Reg kQueueMethods[] = {{"submit", guard<submit>}, {nullptr, nullptr}};
const luaL_Reg kTicketMethods[] = {{"wait", guard<wait>}, {nullptr, nullptr}};

const Binding data_binding{"data", [](lua_State* lua) {
                             define_object<io::FrameReader>(lua, kReaderMethods);
                             define_object<io::FrameQueue>(lua, kQueueMethods);
                             define_object<io::FrameQueue::Ticket>(lua, kTicketMethods);
                             lua_newtable(lua);
                             add_functions(lua, kDataFunctions);
                             lua_setfield(lua, -2, "_data");
                           }};

}  // namespace

}  // namespace moonhalo::scripting
