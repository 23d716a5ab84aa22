// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/checkpoint_read.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/stream_copy.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/rank_shares.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/view_copies.h"
#include "moonhalo/io/checkpoint/checkpoint_sums.h"
#include "moonhalo/io/codecs/crc32c.h"
#include "moonhalo/io/shares/file_shares.h"
#include "moonhalo/io/shares/shared_blocks.h"

namespace moonhalo::io {
namespace {

constexpr const char* kLoader = "checkpoint.load";

constexpr int64_t kShortestReadRun = 4 << 10;  // reading ahead serves the ranks that read between
constexpr int64_t kSharedBytes = 16 << 20;     // read by a rank before it is exchanged
constexpr int64_t kLoneBytes = 1 << 20;        // goes from place to place alone, where more would be packed

int64_t bytes_of(const StoredTensor& tensor) { return tensor.end - tensor.begin; }

/// True if a file's bytes can go where the tensor is.
bool takes_bytes(const at::Tensor& target, const StoredTensor& tensor) {
  return target.is_cpu() && target.is_contiguous() && target.scalar_type() == tensor.dtype && !target.is_conj() &&
         !target.is_neg();
}

/// No operator has counted what the disk wrote.
void mark_written(const at::Tensor& target) {
  if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();
  if (is_shard_tensor(target)) block_was_written(shard_impl(target)->local());
}

/// True if the ranks put what they read straight into each other's blocks. The same answer on every rank.
bool can_share(const SpecPtr& spec, const at::Tensor& block, const StoredTensor& tensor) {
  return SharedBlocks::possible(spec->mesh()->group()) && block.is_cpu() && block.scalar_type() == tensor.dtype;
}

bool same_box(const Box& one, const Box& other) { return (one.empty() && other.empty()) || one == other; }

}  // namespace

void CheckpointReader::add(const std::string& entry, const std::string& path, const SafetensorsText& text) {
  const auto file = std::make_shared<File>(File{.path = path, .header = text.header, .opened = std::nullopt});
  for (StoredTensor& tensor : parse_safetensors(path, text).tensors) {
    const std::string name = tensor.name;
    const auto [at, is_new] = entries_[entry].emplace(name, Located{std::move(tensor), file});
    TORCH_CHECK_VALUE(is_new, "safetensors: '", path, "' has the tensor '", name, "', and '", at->second.file->path,
                      "' too");
  }
}

const StoredTensor* CheckpointReader::find(const std::string& entry, const std::string& tensor) const {
  const auto found = entries_.find(entry);
  if (found == entries_.end()) return nullptr;
  const auto named = found->second.find(tensor);
  return named == found->second.end() ? nullptr : &named->second.tensor;
}

std::vector<std::string> CheckpointReader::names(const std::string& entry) const {
  std::vector<std::string> names;
  const auto found = entries_.find(entry);
  if (found == entries_.end()) return names;
  for (const auto& [name, located] : found->second) names.push_back(name);
  return names;
}

// In a dry run this rank does not know the sums over what other ranks read: it reads nothing, and compares nothing.
void CheckpointReader::verify(const std::vector<std::string>& entries, bool own_files) {
  std::vector<Located*> all;
  int64_t total = 0;
  for (const std::string& entry : entries) {
    const auto found = entries_.find(entry);
    if (found == entries_.end()) continue;
    for (auto& [name, located] : found->second) {
      if (!located.tensor.crc32c) continue;
      all.push_back(&located);
      total += bytes_of(located.tensor);
    }
  }
  if (all.empty() && !own_files) return;  // headers are the same on all ranks
  const int64_t ranks = own_files ? 1 : world_.size(), rank = own_files ? 0 : world_.rank();
  const int64_t first = total / ranks * rank + std::min(rank, total % ranks),
                last = first + total / ranks + (rank < total % ranks ? 1 : 0);
  std::vector<uint32_t> addends(all.size(), 0);
  std::exception_ptr failed;
  try {
    const at::Tensor data = empty_block({kPieceBytes}, at::kByte);
    auto* bytes = static_cast<char*>(data.mutable_data_ptr());
    int64_t before = 0;  // bytes of the tensors before this one
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [tensor, file] = *all[i];
      const int64_t size = bytes_of(tensor);
      const int64_t end = world_.is_fake() ? 0 : std::min(last - before, size);
      for (int64_t at = std::max<int64_t>(first - before, 0); at < end;) {
        const int64_t count = std::min(kPieceBytes, end - at);
        if (!file->opened) open(*file);
        file->opened->read_at(bytes, count, tensor.begin + at);
        at += count;
        addends[i] ^= crc32c_addend(bytes, static_cast<size_t>(count), static_cast<uint64_t>(size - at));
      }
      before += size;
    }
  } catch (const c10::Error&) {
    failed = std::current_exception();
  }
  if (!own_files) addends = together(world_, addends);
  fail_together(world_, [&] {
    if (failed) std::rethrow_exception(failed);
    for (size_t i = 0; i < all.size() && !world_.is_fake(); ++i) {
      const auto& [tensor, file] = *all[i];
      check_crc32c(kLoader, file->path, tensor, crc32c_of_parts(addends[i], static_cast<uint64_t>(bytes_of(tensor))));
    }
  });
}

void CheckpointReader::open(File& file) const {
  file.opened.emplace(PositionedFile::open_to_read(kLoader, file.path));
  std::string own(file.header.size(), '\0');
  file.opened->read_at(own.data(), static_cast<int64_t>(own.size()), sizeof(uint64_t));
  TORCH_CHECK_VALUE(own == file.header, kLoader, ": rank ", world_.rank(), " finds another file at '", file.path,
                    "' than rank 0\n  have  headers that differ\n  fix   load from a folder that all ranks share, or "
                    "save with layout = "
                    "\"per_rank\"");
}

void CheckpointReader::read(File& file, const StoredTensor& tensor, const Extent& extent, const Box& box, void* data) {
  try {
    if (failed_ || box.empty()) return;
    if (!file.opened) open(file);
    auto* next = static_cast<char*>(data);
    for_each_run(extent.shape, box, extent.element_bytes, [&](int64_t offset, int64_t length) {
      file.opened->read_at(next, length, tensor.begin + offset);
      next += length;
      bytes_read_ += length;
    });
  } catch (const c10::Error&) {
    failed_ = std::current_exception();  // and go on: others count on this rank for what they gather
  }
}

/// False where there are no places.
bool CheckpointReader::read_to_places(File& file, const StoredTensor& tensor, const Extent& extent, const Box& box,
                                      const std::vector<ReadInto>& places) {
  if (places.empty()) return false;
  if (failed_) return true;
  try {
    if (!file.opened) open(file);
    for_each_run(extent.shape, box, extent.element_bytes, [&](int64_t offset, int64_t length) {
      file.opened->read_at(places, tensor.begin + offset);
      bytes_read_ += length;
    });
  } catch (const c10::Error&) {
    failed_ = std::current_exception();
  }
  return true;
}

/// By this rank alone where there is no group. `mesh`: that of the group; null: the world.
void CheckpointReader::read_copies(File& file, const StoredTensor& tensor, Communicator* group,
                                   const at::Tensor& target, const DeviceMesh* mesh) {
  const bool in_place = takes_bytes(target, tensor);
  const at::Tensor data = in_place ? target : empty_block(tensor.shape, tensor.dtype);
  const int64_t bytes = bytes_of(tensor);
  const Extent as_bytes{{bytes}, 1};
  if (group == nullptr || group->size() == 1 || bytes <= kSmallBytes) {
    read(file, tensor, as_bytes, Box{{0, bytes}}, data.mutable_data_ptr());
  } else {
    const std::vector<int64_t> counts = balanced_sizes(bytes, group->size());
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + group->rank(), int64_t{0});
    note_shares(mesh, group->rank(), [&] { return counts; });
    scratch_used_ = 0;
    const at::Tensor part = scratch({counts[group->rank()]}, at::kByte);
    read(file, tensor, as_bytes, Box{{begin, begin + part.numel()}}, part.mutable_data_ptr());
    at::Tensor whole = at::from_blob(data.mutable_data_ptr(), {bytes}, at::kByte);
    group->all_gather(part, counts, whole);
  }
  if (!in_place) target.copy_(data);
}

CheckpointReader::Extent CheckpointReader::extent_of(const ShardSpec& spec, const StoredTensor& tensor) {
  return {spec.ndim() == 0 ? std::vector<int64_t>{1} : spec.global_shape(),
          static_cast<int64_t>(c10::elementSize(tensor.dtype))};
}

void CheckpointReader::read_block(File& file, const StoredTensor& tensor, const at::Tensor& target) {
  const SpecPtr& held = spec(target);
  const MeshPtr& mesh = held->mesh();
  std::vector<int64_t>& bytes = bytes_by_rank_[mesh.get()];
  bytes.resize(mesh->size());
  const Extent extent = extent_of(*held, tensor);
  std::vector<Box> boxes;
  bool apart = true;  // each rank reads its own block
  if (bytes_of(tensor) > kSmallBytes) {
    boxes = share_out(*held, extent.element_bytes, bytes, kShortestReadRun).boxes;
    for (int64_t rank = 0; rank < mesh->size(); ++rank) apart &= same_box(boxes[rank], block_box(*held, rank));
  }
  if (apart) {
    read_own_block(file, tensor, target);
  } else {
    add_shared({&file, &tensor, held, to_local(target), std::move(boxes)});
  }
}

void CheckpointReader::read_own_block(File& file, const StoredTensor& tensor, const at::Tensor& target) {
  const SpecPtr& held = spec(target);
  const at::Tensor block = to_local(target);
  const at::Tensor data = takes_bytes(block, tensor) ? block : empty_block(block.sizes(), tensor.dtype);
  read(file, tensor, extent_of(*held, tensor), held->ndim() == 0 ? Box{{0, 1}} : block_box(*held, held->mesh()->rank()),
       data.mutable_data_ptr());
  if (!data.is_same(block)) block.copy_(data);
}

void CheckpointReader::add_shared(Shared shared) {
  int64_t bytes = 0;
  for (const Box& box : shared.boxes) {
    bytes = std::max(bytes, box.numel() * static_cast<int64_t>(c10::elementSize(shared.tensor->dtype)));
  }
  shared.is_shared = can_share(shared.spec, shared.block, *shared.tensor);
  const bool joins =
      shared_.empty() ||
      (shared_[0].spec->mesh() == shared.spec->mesh() && shared_[0].is_shared == shared.is_shared &&
       shared_[0].tensor->dtype == shared.tensor->dtype && (shared.is_shared || shared_bytes_ + bytes <= kSharedBytes));
  if (!joins || (!shared.is_shared && (bytes >= kLoneBytes || shared_bytes_ >= kLoneBytes))) flush();
  shared_.push_back(std::move(shared));
  shared_bytes_ += bytes;
}

at::Tensor CheckpointReader::scratch(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  const int64_t bytes = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
  if (scratch_used_ + bytes > kSharedBytes) return at::empty(shape, dtype);
  if (!scratch_.defined()) scratch_ = empty_block({kSharedBytes}, at::kByte);
  const at::Tensor part = scratch_.narrow(0, scratch_used_, bytes).view(dtype).view(shape);
  scratch_used_ += (bytes + 63) / 64 * 64;
  return part;
}

void CheckpointReader::flush() {
  const std::vector<Shared> all = std::exchange(shared_, {});
  shared_bytes_ = scratch_used_ = 0;
  if (all.empty()) return;
  for (const Shared& one : all) {
    note_moved_boxes(*one.spec->mesh(), {.from = [&](int64_t, int64_t rank) { return one.boxes[rank]; },
                                         .to = [&](int64_t, int64_t rank) { return block_box(*one.spec, rank); }});
  }
  all[0].is_shared ? put_in_place(all) : exchange(all);
}

void CheckpointReader::put_in_place(const std::vector<Shared>& all) {
  const MeshPtr& mesh = all[0].spec->mesh();
  std::vector<at::Tensor> places;
  for (const Shared& one : all) {
    places.push_back(takes_bytes(one.block, *one.tensor) ? one.block
                                                         : empty_block(one.block.sizes(), one.tensor->dtype));
  }
  SharedBlocks blocks(mesh->group(), places);
  const at::Tensor data = scratch({kPieceBytes}, at::kByte);
  for (size_t i = 0; i < all.size() && !failed_; ++i) {
    const Shared& one = all[i];
    const Extent extent = extent_of(*one.spec, *one.tensor);
    const auto box_of = [&](int64_t rank) { return block_box(*one.spec, rank); };
    for (const Box& piece : pieces_of(one.boxes[mesh->rank()], extent.element_bytes, kPieceBytes)) {
      if (read_to_places(*one.file, *one.tensor, extent, piece, blocks.places(i, extent.shape, piece, box_of)))
        continue;
      read(*one.file, *one.tensor, extent, piece, data.mutable_data_ptr());
      if (failed_) break;
      blocks.put(i, data.const_data_ptr(), piece, box_of);
    }
  }
  finish_stream();
  blocks.release();
  mesh->group().barrier();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!places[i].is_same(all[i].block)) all[i].block.copy_(places[i]);
  }
}

void CheckpointReader::exchange(const std::vector<Shared>& all) {
  HaloExchange exchange;
  std::deque<IntervalMap> maps;
  for (const Shared& one : all) {
    const MeshPtr& mesh = one.spec->mesh();
    const Box& box = one.boxes[mesh->rank()];
    const at::Tensor data = scratch(box.shape(), one.tensor->dtype);
    const auto element_bytes = static_cast<int64_t>(data.element_size());
    read(*one.file, *one.tensor, {one.spec->global_shape(), element_bytes}, box, data.mutable_data_ptr());
    maps.emplace_back(Ownership{mesh, one.spec->global_shape(), [&](int64_t rank) { return one.boxes[rank]; },
                                [](int64_t, int64_t) { return true; }},
                      [&](int64_t rank) { return requests_for(block_box(*one.spec, rank)); });
    // Straight into the block where it takes the bytes: new memory costs more than a copy.
    if (takes_bytes(one.block, *one.tensor) && one.block.dim() > 0) {
      exchange.add_gather_into(maps.back(), data, one.block);
    } else {
      exchange.add_gather(maps.back(), data.to(one.block.device()));
    }
  }
  exchange.start();
  exchange.wait();
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor arrived = exchange.gathered(i);
    if (!arrived.is_same(all[i].block)) all[i].block.copy_(arrived);
  }
}

void CheckpointReader::read_into(const std::string& entry, const std::string& tensor, const at::Tensor& target) {
  const auto& [stored, file] = entries_.at(entry).at(tensor);
  File& from = *file;
  TORCH_INTERNAL_ASSERT(target.sizes() == at::IntArrayRef(stored.shape), "a tensor is read into one of another shape");
  const at::NoGradGuard no_grad;
  if (!is_shard_tensor(target)) {
    read_copies(from, stored, &world_, target);
  } else if (spec(target)->has_partial()) {
    const at::Tensor whole = empty_block(stored.shape, stored.dtype);
    read_copies(from, stored, &world_, whole);
    target.copy_(whole);
  } else if (spec(target)->is_replicate() && to_local(target).is_cpu() &&
             !can_share(spec(target), to_local(target), stored)) {
    read_copies(from, stored, &spec(target)->mesh()->group(), to_local(target), spec(target)->mesh().get());
  } else {
    read_block(from, stored, target);
  }
  mark_written(target);
}

void CheckpointReader::read_alone(const std::string& entry, const std::string& tensor, const at::Tensor& target) {
  const auto& [stored, file] = entries_.at(entry).at(tensor);
  TORCH_INTERNAL_ASSERT(target.sizes() == at::IntArrayRef(stored.shape), "a tensor is read into one of another shape");
  const at::NoGradGuard no_grad;
  if (!is_shard_tensor(target)) {
    read_copies(*file, stored, nullptr, target);
  } else if (spec(target)->has_partial()) {
    const at::Tensor whole = empty_block(stored.shape, stored.dtype);
    read_copies(*file, stored, nullptr, whole);
    target.copy_(whole);
  } else {
    read_own_block(*file, stored, target);
  }
  mark_written(target);
}

void CheckpointReader::read_block(const std::string& entry, const std::string& tensor, const at::Tensor& target) {
  const auto& [stored, file] = entries_.at(entry).at(tensor);
  const at::NoGradGuard no_grad;
  const at::Tensor block = is_shard_tensor(target) ? to_local(target) : target;
  TORCH_INTERNAL_ASSERT(block.sizes() == at::IntArrayRef(stored.shape), "a block is read into one of another shape");
  read_copies(*file, stored, nullptr, block);
  mark_written(target);
}

void CheckpointReader::finish() {
  const at::NoGradGuard no_grad;
  flush();
  fail_together(world_, [&] {
    if (failed_) std::rethrow_exception(failed_);
  });
}

}  // namespace moonhalo::io
