// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/checkpoint_write.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <exception>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/fake/fake_subgroup.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/rank_shares.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/checkpoint_sums.h"
#include "moonhalo/io/checkpoint/safetensors.h"
#include "moonhalo/io/codecs/crc32c.h"

namespace moonhalo::io {
namespace {

constexpr const char* kWho = "checkpoint.save";
constexpr int64_t kShortestBackgroundRun = 512;  // a thread takes its time, the run does not wait for what is sent

/// The numbers in 64 steps of the largest.
std::vector<int64_t> in_steps(std::vector<int64_t> bytes) {
  const int64_t largest = std::max<int64_t>(*std::max_element(bytes.begin(), bytes.end()), 1);
  for (int64_t& one : bytes) one = one * 64 / largest;
  return bytes;
}

}  // namespace

struct CheckpointWriter::File : CheckedFile {
  std::string header;
};

CheckpointWriter::CheckpointWriter(Communicator& world, std::string path, bool in_background)
    : world_(world),
      is_dry_(world.is_fake()),
      path_(std::move(path)),
      short_run_(in_background ? kShortestBackgroundRun : kShortRun) {}
CheckpointWriter::CheckpointWriter(std::string path, bool is_dry)
    : alone_(make_self_communicator()),
      world_(*alone_),
      is_dry_(is_dry),
      path_(std::move(path)),
      short_run_(kShortRun) {}
CheckpointWriter::~CheckpointWriter() = default;

bool CheckpointWriter::writes(const MeshPtr& mesh, int64_t owner) {
  if (mesh->size() == world_.size()) return true;
  std::vector<std::string>& members = members_[mesh.get()];
  if (members.empty()) members = mesh->group().all_gather_strings(std::to_string(world_.rank()));
  if (is_dry_) {
    members.clear();
    for (const int64_t rank : pretended_ranks(mesh->group())) members.push_back(std::to_string(rank));
  }
  return std::find(members.begin(), members.end(), std::to_string(owner)) != members.end();
}

FilePart CheckpointWriter::make_part(const at::Tensor& tensor, int64_t owner) {
  if (is_shard_tensor(tensor)) {
    const SpecPtr target = without_partial(spec(tensor));
    return share_block(target, to_local(redistribute(tensor, target)).detach(), bytes_by_rank_[target->mesh().get()],
                       short_run_);
  }
  FilePart part{.element_bytes = static_cast<int64_t>(tensor.element_size())};
  part.block = tensor.dim() == 0 ? materialize_lazy_bits(tensor).reshape({1}) : materialize_lazy_bits(tensor);
  part.shares.shape = part.block.sizes().vec();
  for (const int64_t size : part.shares.shape) part.owned.push_back({0, world_.rank() == owner ? size : 0});
  part.box = part.owned;
  return part;
}

void CheckpointWriter::add(const std::string& name, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                           const std::vector<int64_t>& owners, std::map<std::string, std::string> metadata) {
  std::vector<StoredTensor> stored;
  for (const auto& [key, tensor] : tensors) stored.push_back({key, tensor.scalar_type(), tensor.sizes().vec()});
  metadata.emplace("format", "pt");
  std::string header = lay_out_safetensors(stored, metadata);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor tensor = tensors[i].second.detach();
    const int64_t owner = owners.empty() ? 0 : owners[i];
    const bool is_elsewhere = !is_shard_tensor(tensor) && tensor.is_meta();
    if (is_elsewhere || (is_shard_tensor(tensor) && !writes(spec(tensor)->mesh(), owner))) continue;
    FilePart part = make_part(tensor, owner);
    part.file = files_.size();
    part.offset = stored[i].begin;
    parts_.push_back(std::move(part));
    tensor_of_part_.push_back(tensors_ + i);
  }
  tensors_ += tensors.size();
  files_.push_back(
      {{path_ + ".partial/" + name + ".safetensors", std::move(stored), std::move(metadata)}, std::move(header)});
}

void CheckpointWriter::check_same_entries() {
  std::string all;
  for (const File& file : files_) all += file.path + file.header;
  const auto hashes = world_.all_gather_strings(std::to_string(std::hash<std::string>()(all)));
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](auto& hash) { return hash != hashes[0]; });
  TORCH_CHECK_VALUE(other == hashes.end(), kWho, ": ranks 0 and ", other - hashes.begin(),
                    " save different tensors in '", path_,
                    "'\n  have  other names, shapes or dtypes, or another folder"
                    "\n  fix   give every rank the same entries and path; what differs by rank is a ShardTensor");
}

void CheckpointWriter::create() {
  if (is_dry_) return;
  for (const File& file : files_) {
    const auto bytes = file.tensors.empty() ? static_cast<int64_t>(file.header.size()) : file.tensors.back().end;
    PositionedFile made = PositionedFile::create(kWho, file.path, bytes);
    made.write_at(file.header.data(), static_cast<int64_t>(file.header.size()), 0);
  }
}

// A part's contribution to its tensor's checksum. `offset`: of these bytes in the tensor.
uint32_t CheckpointWriter::crc_of(size_t part, int64_t offset, const char* data, int64_t bytes) const {
  const int64_t all = c10::multiply_integers(parts_[part].shares.shape) * parts_[part].element_bytes;
  return crc32c_addend(data, static_cast<size_t>(bytes), static_cast<uint64_t>(all - offset - bytes));
}

void CheckpointWriter::write() {
  std::vector<uint32_t> addends(tensors_, 0);
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
  for (size_t file = 0; world_.rank() == 0 && !is_dry_ && file < files_.size(); ++file)
    attempt([&] { open(file); });  // for its header
  for_each_piece(parts_, [&](const FilePart& part, const Box& box, const at::Tensor& data) {
    attempt([&] {
      if (is_dry_) return;
      check_computed(data, kWho + std::string(": a tensor"));
      const auto* next = static_cast<const char*>(data.const_data_ptr());
      PositionedFile& file = open(part.file);
      const auto number = static_cast<size_t>(&part - parts_.data());
      for_each_run(part.shares.shape, box, part.element_bytes, [&](int64_t offset, int64_t length) {
        addends[tensor_of_part_[number]] ^= crc_of(number, offset, next, length);
        file.write_at(next, length, part.offset + offset);
        next += length;
      });
    });
  });
  std::vector<CheckedFile> checked(files_.begin(), files_.end());
  add_checksums(checked, together(world_, addends));
  for (size_t i = 0; world_.rank() == 0 && !is_dry_ && i < files_.size(); ++i)
    attempt([&] { write_header(open(i), checked[i]); });
  for (auto& [i, file] : files) attempt([&, &file = file] { file.sync(); });
  fail_together(world_, [&] {
    if (failed) std::rethrow_exception(failed);
  });
}

std::shared_ptr<BackgroundWrite> CheckpointWriter::copy() {
  auto background = std::make_shared<BackgroundWrite>(
      path_, world_.rank(), world_.size(), std::vector<CheckedFile>(files_.begin(), files_.end()), bytes(), is_dry_);
  for (const auto& [mesh, bytes] : bytes_by_rank_) note_shares(mesh, mesh->rank(), [&] { return in_steps(bytes); });
  for_each_piece(parts_, [&](const FilePart& part, const Box& box, const at::Tensor& data) {
    if (is_dry_) return;
    check_computed(data, kWho + std::string(": a tensor"));
    const auto* next = static_cast<const char*>(data.const_data_ptr());
    const size_t tensor = tensor_of_part_[static_cast<size_t>(&part - parts_.data())];
    const int64_t all = c10::multiply_integers(part.shares.shape) * part.element_bytes;
    for_each_run(part.shares.shape, box, part.element_bytes, [&](int64_t offset, int64_t length) {
      background->add({static_cast<int64_t>(part.file), part.offset + offset, length, tensor, all - offset - length},
                      next);
      next += length;
    });
  });
  return background;
}

int64_t CheckpointWriter::bytes() const {
  int64_t bytes = 0;
  for (const FilePart& part : parts_) bytes += part.box.empty() ? 0 : part.box.numel() * part.element_bytes;
  return bytes;
}

}  // namespace moonhalo::io
