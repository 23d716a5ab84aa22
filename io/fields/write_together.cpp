// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/write_together.h"

#include <ATen/ATen.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/rank_shares.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/io_context.h"
#include "moonhalo/io/base/memory.h"
#include "moonhalo/io/base/pwrite_all.h"
#include "moonhalo/io/fields/chunk_writer.h"
#include "moonhalo/io/fields/dataset_template.h"
#include "moonhalo/io/fields/writer.h"
#include "moonhalo/io/formats/link_policy.h"
#include "moonhalo/io/formats/scales.h"
#include "moonhalo/io/shares/file_parts.h"
#include "moonhalo/io/shares/io_plan.h"

namespace moonhalo::io {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // of what goes through one rank

/// The facts that every rank must know of the dataset that the owner has made.
struct Target {
  std::string file;  ///< the unfinished one
  int64_t first_row = 0;
  std::optional<uint64_t> offset;  ///< of runs
  std::optional<ArrayMap> map;     ///< of chunks
};

nlohmann::json to_json(const Target& target) {
  nlohmann::json json = {{"file", target.file}, {"first_row", target.first_row}};
  if (target.offset) json["offset"] = *target.offset;
  if (!target.map) return json;
  const ArrayMap& map = *target.map;
  json["map"] = {{"shape", map.shape},
                 {"chunk", map.chunk},
                 {"size", map.element_size},
                 {"swapped", map.swapped},
                 {"fill", std::vector<uint8_t>(map.fill.begin(), map.fill.end())}};
  for (const Codec& codec : map.codecs)
    json["map"]["codecs"].push_back({static_cast<int>(codec.kind), codec.element_size, codec.level});
  return json;
}

Target from_json(const nlohmann::json& json) {
  Target target{.file = json.at("file"), .first_row = json.at("first_row")};
  if (json.contains("offset")) target.offset = json.at("offset").get<uint64_t>();
  if (!json.contains("map")) return target;
  const nlohmann::json& from = json.at("map");
  ArrayMap& map = target.map.emplace();
  map.shape = from.at("shape").get<std::vector<int64_t>>();
  map.chunk = from.at("chunk").get<std::vector<int64_t>>();
  map.element_size = from.at("size");
  map.swapped = from.at("swapped");
  for (const uint8_t byte : from.at("fill")) map.fill.push_back(static_cast<char>(byte));
  if (!from.contains("codecs")) return target;
  for (const auto& codec : from.at("codecs"))
    map.codecs.push_back({static_cast<Codec::Kind>(codec.at(0).get<int>()), codec.at(1), codec.at(2)});
  return target;
}

/// True if writes of several ranks may not overlap in a file: clients of NFS write whole pages as they know them. A dry
/// run may not have the folder; the one above it counts.
bool needs_one_writer(const std::string& path) {
  const char* required = std::getenv("MOONHALO_ONE_WRITER");
  if (required && std::string(required) == "1") return true;
  std::error_code hidden;
  std::filesystem::path folder = std::filesystem::absolute(path, hidden).parent_path();
  struct statfs system {};
  while (statfs(folder.c_str(), &system) != 0 && folder.has_relative_path()) folder = folder.parent_path();
  return system.f_type == NFS_SUPER_MAGIC;
}

SpecPtr spec_of_one(at::IntArrayRef shape) {
  MeshPtr& mesh = io_context->mesh_of_one;
  if (!mesh) mesh = init_device_mesh(*make_self_communicator(), "cpu", {1});
  return replicated(mesh, shape);
}

/// One tensor on its way into a dataset.
class SharedWrite {
 public:
  SharedWrite(FileState& file, const std::string& name, const SpecPtr& spec, at::Tensor block, const h5::Where& where)
      : file_(file),
        name_(name),
        where_(where),
        spec_(spec),
        block_(std::move(block)),
        group_(spec->mesh()->group_ptr()),
        rank_(group_->rank()) {}

  void run(const WriteOptions& options, bool grows, bool shared) {
    const std::string facts = run_on_first_rank(*group_, [&] { return to_json(make(options, grows, shared)).dump(); });
    target_ = from_json(nlohmann::json::parse(facts));
    fail_together(*group_, [&] {
      if (!owner()) file_.follow(group_, target_.file, where_);
    });
    if (spec_->global_numel() == 0) return;
    if (target_.offset) {
      write_runs();
    } else if (target_.map) {
      write_chunks();
    } else {
      write_through_owner();
    }
  }

  /// Makes the dataset, and writes nothing: for ranks of a dry run that are not the owner.
  void make_only(const WriteOptions& options, bool grows) { make(options, grows, false); }

 private:
  bool owner() const { return rank_ == 0; }

  Target make(const WriteOptions& options, bool grows, bool shared) {
    const ComputedValues facts;  // coordinates are compared
    Target target;
    DatasetInfo info;
    const auto& shape = spec_->global_shape();
    const DatasetTemplate like =
        options.like ? read_dataset_template(*options.like, shape, grows, where_) : DatasetTemplate{};
    const WriteOptions full = completed(options, like);
    {
      const auto access = file_.write(where_);
      for (const DatasetTemplate::Coordinates& coordinates : like.coordinates) check_coordinates(access, coordinates);
      h5::Handle dataset;
      if (grows) {
        std::tie(dataset, target.first_row) = grow_dataset_in(access, name_, shape, block_.scalar_type(), full, where_);
      } else {
        dataset = create_dataset_in(access, name_, shape, block_.scalar_type(), full, where_);
      }
      info = read_info(access.id, dataset.get(), name_, where_);
      dataset.close(where_);
      for (const DatasetTemplate::Coordinates& coordinates : like.coordinates) write_coordinates(access, coordinates);
    }
    if (shared) target.file = file_.share(group_, where_);
    if (shared && group_->size() > 1 && needs_one_writer(target.file)) return target;
    if (info.native && !grows) target.offset = info.offset;
    if (info.map && encodable(info.map->codecs)) target.map = std::move(info.map);
    return target;
  }

  /// ValueError where the file has others of that name.
  void check_coordinates(const FileState::Access& access, const DatasetTemplate::Coordinates& coordinates) const {
    const std::string path = find_dimension(access, name_, coordinates.name);
    if (path.empty()) return;
    const h5::Handle there = h5::open_dataset(access.id, "/" + path, 0, nullptr, where_);
    if (is_bare_dimension(there.get(), where_)) return;
    const DatasetInfo info = read_info(access.id, there.get(), path, where_);
    at::Tensor known = at::empty_like(coordinates.values);
    const bool identical = info.dtype == known.scalar_type() && info.shape == known.sizes();
    if (identical) {
      const h5::Handle type = h5::type_of(there.get(), where_);
      const h5::Handle memory = h5::memory_type(type.get(), *info.dtype, where_);
      h5::checked(where_, "read its coordinates", [&] {
        return H5Dread(there.get(), memory.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, known.mutable_data_ptr());
      });
    }
    const bool is_same = identical && (file_.is_dry() || at::equal(known, coordinates.values));
    TORCH_CHECK_VALUE(is_same, where_.to_string(), ": dimension \"", coordinates.name,
                      "\" has other coordinates\n  have  those of an earlier dataset, and those of "
                      "`like`\n  fix   write it into another group or file, or give dims of other names");
  }

  void write_coordinates(const FileState::Access& access, const DatasetTemplate::Coordinates& coordinates) const {
    const std::string path = find_dimension(access, name_, coordinates.name);
    const h5::Handle there = h5::open_dataset(access.id, "/" + path, 0, nullptr, where_);
    if (!is_bare_dimension(there.get(), where_)) return;
    const h5::Handle made =
        create_dataset_in(access, path, coordinates.values.sizes(), coordinates.values.scalar_type(),
                          {.attrs = coordinates.attrs, .dims = {coordinates.name}}, where_);
    write_part(made.get(), {0}, coordinates.values, where_);
  }

  void write_runs() {
    std::vector<int64_t> bytes;
    const FilePart part = share_block(spec_, block_, bytes);
    for_each_piece({part}, [&](const FilePart&, const Box& box, const at::Tensor& data) {
      if (file_.is_dry()) return;
      check_computed(data, where_.to_string() + ": the block");
      const auto* next = static_cast<const char*>(data.const_data_ptr());
      for_each_run(part.shares.shape, box, part.element_bytes, [&](int64_t offset, int64_t length) {
        file_.write_raw(next, static_cast<size_t>(length), *target_.offset + static_cast<uint64_t>(offset));
        next += length;
      });
    });
    check_written();
  }

  void check_written() {
    fail_together(*group_, [&] { file_.check_written(where_); });
  }

  /// The rows of the tensor in the dataset.
  std::vector<Slice> slices() const {
    std::vector<Slice> slices = whole(spec_->global_shape());
    slices[0].begin = target_.first_row;
    return slices;
  }

  void write_chunks();
  void write_round(const IoPlan& plan, int64_t round, const at::Tensor& block);
  std::vector<StoredChunk> chunks_before(const std::vector<CellBox>& by_rank);
  std::vector<uint64_t> place(const std::vector<CellBox>& by_rank, const std::vector<EncodedChunk>& mine);
  void write_through_owner();
  /// Opens the dataset on the owner, for one call of HDF5 after the other.
  template <typename Work>
  void with_dataset(const Work& work) {
    const auto access = file_.write(where_);
    h5::Handle dataset = h5::open_dataset(access.id, "/" + name_, 0, nullptr, where_);
    work(dataset.get());
    dataset.close(where_);
  }

  FileState& file_;
  const std::string& name_;
  const h5::Where& where_;
  const SpecPtr spec_;
  const at::Tensor block_;
  const CommunicatorPtr group_;
  const int rank_;
  Target target_;
};

void SharedWrite::write_chunks() {
  const ArrayMap& map = *target_.map;
  const IoPlan plan(chunk_grid(map, slices()), map.element_size, spec_, {}, IoPlan::Use::kWrite);
  note_moved_boxes(
      *spec_->mesh(),
      {.rounds = plan.rounds(),
       .from = [&](int64_t, int64_t rank) { return block_box(*spec_, rank); },
       .to = [&](int64_t round, int64_t rank) { return rows_of(plan.grid(), plan.cells_read(round, rank)); },
       .serves = Ownership::of(spec_).serves});
  const at::Tensor block = block_.view(moved_as(map.element_size));
  for (int64_t round = 0; round < plan.rounds(); ++round) write_round(plan, round, block);
}

void SharedWrite::write_round(const IoPlan& plan, int64_t round, const at::Tensor& block) {
  const ArrayMap& map = *target_.map;
  std::vector<CellBox> by_rank;
  for (int64_t rank = 0; rank < group_->size(); ++rank)
    by_rank.emplace_back(map, plan.grid(), plan.cells_read(round, rank));
  const CellBox& mine = by_rank[rank_];
  const IntervalMap pieces(
      spec_, [&](int64_t rank) { return requests_for(rows_of(plan.grid(), plan.cells_read(round, rank))); });
  const at::Tensor rows = gather(pieces, block).contiguous();
  const std::vector<StoredChunk> before = chunks_before(by_rank);

  std::vector<EncodedChunk> chunks;
  fail_together(*group_, [&] {
    if (file_.is_dry()) return chunks.resize(static_cast<size_t>(mine.count()));
    check_computed(rows, where_.to_string() + ": the block");
    chunks = encode_cells(map, mine, static_cast<const char*>(rows.const_data_ptr()), before, file_.raw_descriptor(),
                          where_);
  });
  const std::vector<uint64_t> addresses = place(by_rank, chunks);
  if (file_.is_dry()) return check_written();
  for (size_t i = 0; i < chunks.size(); ++i)
    file_.write_raw(chunks[i].bytes.data(), chunks[i].bytes.size(), addresses[i]);
  // A rank's chunks are stored together, as place() asks for space in the order of ranks.
  if (!chunks.empty()) hand_to_disk(file_.raw_descriptor(), addresses.front(), addresses.back());
  check_written();
}

/// Returns what stands in the file where a cell of this rank has only a part of its chunk.
std::vector<StoredChunk> SharedWrite::chunks_before(const std::vector<CellBox>& by_rank) {
  std::vector<StoredChunk> before(static_cast<size_t>(by_rank[rank_].count()));
  std::vector<std::vector<int64_t>> chunks;     // all such
  std::vector<std::pair<size_t, size_t>> mine;  // which of them, which cell
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (int64_t i = 0; i < by_rank[rank].count(); ++i) {
      if (by_rank[rank].has_whole_chunk(i)) continue;
      if (static_cast<int>(rank) == rank_) mine.emplace_back(chunks.size(), static_cast<size_t>(i));
      chunks.push_back(by_rank[rank].chunk(i));
    }
  }
  if (chunks.empty()) return before;
  const ComputedValues numbers;
  at::Tensor found = at::zeros({static_cast<int64_t>(chunks.size()), 3}, at::kLong);
  auto facts = found.accessor<int64_t, 2>();
  fail_together(*group_, [&] {
    if (!owner() || file_.is_dry()) return;
    with_dataset([&](hid_t dataset) {
      for (size_t i = 0; i < chunks.size(); ++i) {
        const StoredChunk chunk = find_chunk(dataset, *target_.map, chunks[i], where_);
        const auto row = static_cast<int64_t>(i);
        facts[row][0] = static_cast<int64_t>(chunk.offset);
        facts[row][1] = static_cast<int64_t>(chunk.bytes);
        facts[row][2] = chunk.skipped;
      }
    });
  });
  group_->broadcast(found, 0);
  if (file_.is_dry()) return before;
  for (const auto& [which, cell] : mine) {
    const auto row = static_cast<int64_t>(which);
    before[cell] = {static_cast<uint64_t>(facts[row][0]), static_cast<uint64_t>(facts[row][1]),
                    static_cast<uint32_t>(facts[row][2])};
  }
  return before;
}

/// Where this rank's chunks go. The owner gives places in the order of ranks, so that each rank's are together.
std::vector<uint64_t> SharedWrite::place(const std::vector<CellBox>& by_rank, const std::vector<EncodedChunk>& mine) {
  std::vector<int64_t> counts, sent;
  int64_t all = 0, first = 0;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (static_cast<int>(rank) == rank_) first = all;
    all += by_rank[rank].count();
    counts.push_back(2 * by_rank[rank].count());
  }
  for (const EncodedChunk& chunk : mine) {
    sent.push_back(static_cast<int64_t>(chunk.bytes.size()));
    sent.push_back(chunk.skipped);
  }
  const ComputedValues numbers;
  at::Tensor sizes = at::empty({2 * all}, at::kLong), addresses = at::zeros({all}, at::kLong);
  group_->all_gather(at::tensor(sent, at::kLong), counts, sizes);
  fail_together(*group_, [&] {
    if (!owner() || file_.is_dry()) return;
    const FileState::PlacesOnly places(file_);
    with_dataset([&](hid_t dataset) {
      const auto size = sizes.accessor<int64_t, 1>();
      auto address = addresses.accessor<int64_t, 1>();
      int64_t next = 0;
      for (const CellBox& cells : by_rank) {
        for (int64_t i = 0; i < cells.count(); ++i, ++next) {
          address[next] = static_cast<int64_t>(place_chunk(dataset, *target_.map, cells.chunk(i),
                                                           static_cast<uint64_t>(size[2 * next]),
                                                           static_cast<uint32_t>(size[2 * next + 1]), where_));
        }
      }
    });
  });
  group_->broadcast(addresses, 0);
  const auto address = addresses.accessor<int64_t, 1>();
  std::vector<uint64_t> result;
  for (size_t i = 0; i < mine.size(); ++i)
    result.push_back(static_cast<uint64_t>(address[first + static_cast<int64_t>(i)]));
  return result;
}

void SharedWrite::write_through_owner() {
  Box all;
  for (const int64_t size : spec_->global_shape()) all.push_back({0, size});
  Box nothing = all;
  for (int64_t dim = 0; dim < all.ndim(); ++dim) nothing[dim] = {0, 0};
  for (const Box& piece : pieces_of(all, static_cast<int64_t>(block_.element_size()), kPieceBytes)) {
    const IntervalMap pieces(spec_, [&](int64_t rank) { return requests_for(rank == 0 ? piece : nothing); });
    const at::Tensor data = gather(pieces, block_.view(moved_as(block_.element_size())));
    fail_together(*group_, [&] {
      if (!owner() || (file_.is_dry() && is_fake(data))) return;
      std::vector<int64_t> offsets;
      for (const Interval& rows : piece) offsets.push_back(rows.begin);
      if (!offsets.empty()) offsets[0] += target_.first_row;
      with_dataset(
          [&](hid_t dataset) { write_part(dataset, offsets, data.contiguous().view(block_.scalar_type()), where_); });
      file_.check_written(where_);
    });
  }
}

/// All ranks that write a file throw what its owner fails of.
void by_owner(const FileState& file, const std::function<void()>& work) {
  const CommunicatorPtr group = file.group();
  if (!group) return work();
  fail_together(*group, [&] {
    if (!file.follows() || file.is_dry()) work();
  });
}

}  // namespace

void write_together(FileState& file, const std::string& name, const at::Tensor& tensor, const WriteOptions& options,
                    bool grows, const h5::Where& where) {
  const auto describe = [&] { return where.object; };
  const CallScope scope(fingerprint_of(where.object), grows ? "append" : "write", describe);
  at::Tensor block;
  const auto prepare = [&](const at::Tensor& given) {
    file.check_writable(where);
    file.note_unwritten(given.numel() * static_cast<int64_t>(given.element_size()));
    block = file.follows() && !is_shard_tensor(tensor) ? given : plain_data(given);
  };
  if (!is_shard_tensor(tensor)) {
    by_owner(file, [&] { prepare(tensor); });
    return change_together(file, where, [&] {
      SharedWrite write(file, name, spec_of_one(tensor.sizes()), block, where);
      file.follows() ? write.make_only(options, grows) : write.run(options, grows, false);
    });
  }
  const SpecPtr target = without_partial(spec(tensor));
  const at::Tensor given = to_local(redistribute(tensor.detach(), target));
  fail_together(target->mesh()->group(), [&] { prepare(given); });
  // A failure after the dataset was made leaves half of it: no rank may finish the file.
  file.change(where, [&] { SharedWrite(file, name, target, block, where).run(options, grows, true); });
}

void change_together(FileState& file, const h5::Where& where, const std::function<void()>& work) {
  const auto describe = [&] { return where.object; };
  const CallScope scope(fingerprint_of(where.object), "write", describe);
  file.change(where, [&] { by_owner(file, work); });
}

}  // namespace moonhalo::io
