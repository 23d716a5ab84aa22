// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint_write.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <exception>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/positioned_file.h"
#include "moonhalo/io/safetensors.h"

namespace moonhalo::io {
namespace {

constexpr const char* kWho = "checkpoint.save";
constexpr int64_t kShortestBackgroundRun = 512;  // a thread takes its time, the run does not wait for what travels
constexpr int64_t kPieceBytes = 16 << 20;        // of what has to be gathered, packed or brought from a device

at::Tensor region(at::Tensor tensor, const Box& box, const Box& within) {
  for (int64_t dim = 0; dim < box.ndim(); ++dim) {
    tensor = tensor.narrow(dim, box[dim].begin - within[dim].begin, box[dim].size());
  }
  return tensor;
}

}  // namespace

struct CheckpointWriter::File {
  std::string path, header;
  int64_t bytes;
};

/// One tensor as this rank has it.
struct CheckpointWriter::Part {
  size_t file = 0;
  int64_t offset = 0;  // of the tensor in its file
  int64_t element_bytes;
  SpecPtr spec;  // null: plain
  FileShares shares;
  at::Tensor block;
  Box owned;  // the block
  Box box;    // what this rank writes
};

/// Pieces of one tensor, one by rank, that travel at once.
struct CheckpointWriter::Round {
  const Part* part;
  std::vector<Box> boxes;
  int64_t bytes;  // of the largest
};

CheckpointWriter::CheckpointWriter(Communicator& world, std::string path, bool in_background)
    : world_(world), path_(std::move(path)), short_run_(in_background ? kShortestBackgroundRun : kShortRun) {}
CheckpointWriter::~CheckpointWriter() = default;

bool CheckpointWriter::writes(const MeshPtr& mesh) {
  if (mesh->size() == world_.size()) return true;
  const auto known = writes_.find(mesh.get());
  if (known != writes_.end()) return known->second;
  const auto members = mesh->group().all_gather_strings(std::to_string(world_.rank()));
  return writes_[mesh.get()] = std::find(members.begin(), members.end(), "0") != members.end();
}

CheckpointWriter::Part CheckpointWriter::make_part(at::Tensor tensor) {
  Part part{.element_bytes = static_cast<int64_t>(tensor.element_size())};
  if (!is_shard_tensor(tensor)) {
    part.block = carried_out(tensor);
    part.shares.shape = tensor.dim() == 0 ? std::vector<int64_t>{1} : tensor.sizes().vec();
    for (const int64_t size : part.shares.shape) part.owned.push_back({0, world_.rank() == 0 ? size : 0});
    part.box = part.owned;
  } else {
    part.spec = without_partial(spec(tensor));
    const MeshPtr& mesh = part.spec->mesh();
    part.block = to_local(redistribute(tensor, part.spec)).detach();
    std::vector<int64_t>& bytes = bytes_by_rank_[mesh.get()];
    bytes.resize(mesh->size());
    part.shares = share_out(*part.spec, part.element_bytes, bytes, short_run_);
    part.owned = tensor.dim() == 0 ? Box{{0, 1}} : block_box(*part.spec, mesh->rank());
    part.box = part.shares.boxes[mesh->rank()];
  }
  if (tensor.dim() == 0) part.block = part.block.reshape({1});
  return part;
}

void CheckpointWriter::add(const std::string& name, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<StoredTensor> stored;
  for (const auto& [key, tensor] : tensors) stored.push_back({key, tensor.scalar_type(), tensor.sizes().vec()});
  std::string header = lay_out_safetensors(stored, {{"format", "pt"}});
  const int64_t bytes = stored.empty() ? static_cast<int64_t>(header.size()) : stored.back().end;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor tensor = tensors[i].second.detach();
    if (is_shard_tensor(tensor) && !writes(spec(tensor)->mesh())) continue;
    Part part = make_part(tensor);
    part.file = files_.size();
    part.offset = stored[i].begin;
    parts_.push_back(std::move(part));
  }
  files_.push_back({path_ + ".partial/" + name + ".safetensors", std::move(header), bytes});
}

void CheckpointWriter::check_alike() {
  std::string all;
  for (const File& file : files_) all += file.path + file.header;
  const auto hashes = world_.all_gather_strings(std::to_string(std::hash<std::string>()(all)));
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](auto& hash) { return hash != hashes[0]; });
  TORCH_CHECK_VALUE(other == hashes.end(), kWho, ": ranks 0 and ", other - hashes.begin(), " save different tensors in '", path_,
                    "'\n  have  other names, shapes or dtypes, or another folder"
                    "\n  fix   give every rank the same entries and path; what differs by rank is a ShardTensor");
}

void CheckpointWriter::create() {
  for (const File& file : files_) {
    PositionedFile made = PositionedFile::create(kWho, file.path, file.bytes);
    made.write_at(file.header.data(), static_cast<int64_t>(file.header.size()), 0);
  }
}

void CheckpointWriter::for_each_piece(const Visit& visit) const {
  std::vector<Round> rounds;
  for (const Part& part : parts_) {
    if (part.shares.moves) {
      add_rounds(part, rounds);
    } else if (part.block.is_cpu() && part.block.is_contiguous()) {
      if (!part.box.empty()) visit(part, part.box, region(part.block, part.box, part.owned).contiguous());
    } else {
      for (const Box& piece : pieces_of(part.box, part.element_bytes, kPieceBytes)) {
        visit(part, piece, region(part.block, piece, part.owned).to(at::kCPU).contiguous());
      }
    }
  }
  for (size_t begin = 0, end = 0; begin < rounds.size(); begin = end) {
    const auto joins = [&](const Round& round, int64_t bytes) {
      const Part &first = *rounds[begin].part, &part = *round.part;
      return first.spec->mesh() == part.spec->mesh() && first.block.dtype() == part.block.dtype() &&
             bytes <= kPieceBytes;
    };
    int64_t bytes = rounds[begin].bytes;
    for (end = begin + 1; end < rounds.size() && joins(rounds[end], bytes + rounds[end].bytes); ++end)
      bytes += rounds[end].bytes;
    gather_rounds({rounds.data() + begin, end - begin}, visit);
  }
}

void CheckpointWriter::add_rounds(const Part& part, std::vector<Round>& rounds) {
  std::vector<std::vector<Box>> pieces;
  size_t count = 0;
  for (const Box& box : part.shares.boxes) {
    pieces.push_back(pieces_of(box, part.element_bytes, kPieceBytes));
    count = std::max(count, pieces.back().size());
  }
  Box none;
  for (int64_t dim = 0; dim < part.box.ndim(); ++dim) none.push_back({0, 0});
  for (size_t i = 0; i < count; ++i) {
    Round round{.part = &part, .boxes = {}, .bytes = 0};
    for (const std::vector<Box>& of_rank : pieces) {
      round.boxes.push_back(i < of_rank.size() ? of_rank[i] : none);
      round.bytes = std::max(round.bytes, round.boxes.back().numel() * part.element_bytes);
    }
    rounds.push_back(std::move(round));
  }
}

void CheckpointWriter::gather_rounds(at::ArrayRef<Round> rounds, const Visit& visit) {
  HaloExchange exchange;
  std::deque<IntervalMap> maps;
  for (const Round& round : rounds) {
    maps.emplace_back(round.part->spec, [&](int64_t rank) { return requests_for(round.boxes[rank]); });
    exchange.add_gather(maps.back(), round.part->block);
  }
  exchange.start();
  exchange.wait();
  for (size_t i = 0; i < rounds.size(); ++i) {
    const Part& part = *rounds[i].part;
    const Box& mine = rounds[i].boxes[part.spec->mesh()->rank()];
    if (!mine.empty()) visit(part, mine, exchange.gathered(i).to(at::kCPU).contiguous());
  }
}

void CheckpointWriter::write() {
  std::exception_ptr failed;
  const auto attempt = [&](const auto& work) {
    try {
      if (!failed) work();
    } catch (const c10::Error&) {
      failed = std::current_exception();  // and go on: others count on this rank for what they gather
    }
  };
  std::map<size_t, PositionedFile> files;
  const auto open = [&](size_t file) -> PositionedFile& {
    const auto found = files.find(file);
    if (found != files.end()) return found->second;
    return files.emplace(file, PositionedFile::open_to_write(kWho, files_[file].path)).first->second;
  };
  for (size_t file = 0; world_.rank() == 0 && file < files_.size(); ++file)
    attempt([&] { open(file); });  // for its header
  for_each_piece([&](const Part& part, const Box& box, const at::Tensor& data) {
    attempt([&] {
      const auto* next = static_cast<const char*>(data.const_data_ptr());
      PositionedFile& file = open(part.file);
      for_each_run(part.shares.shape, box, part.element_bytes, [&](int64_t offset, int64_t length) {
        file.write_at(next, length, part.offset + offset);
        next += length;
      });
    });
  });
  for (auto& [i, file] : files) attempt([&, &file = file] { file.sync(); });
  fail_together(world_, [&] {
    if (failed) std::rethrow_exception(failed);
  });
}

std::shared_ptr<BackgroundWrite> CheckpointWriter::copy() {
  std::vector<std::string> paths;
  for (const File& file : files_) paths.push_back(file.path);
  auto background = std::make_shared<BackgroundWrite>(path_, world_.rank(), world_.size(), std::move(paths), bytes());
  for_each_piece([&](const Part& part, const Box& box, const at::Tensor& data) {
    const auto* next = static_cast<const char*>(data.const_data_ptr());
    for_each_run(part.shares.shape, box, part.element_bytes, [&](int64_t offset, int64_t length) {
      background->add(static_cast<int64_t>(part.file), part.offset + offset, next, length);
      next += length;
    });
  });
  return background;
}

int64_t CheckpointWriter::bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.box.empty() ? 0 : part.box.numel() * part.element_bytes;
  return bytes;
}

}  // namespace moonhalo::io
