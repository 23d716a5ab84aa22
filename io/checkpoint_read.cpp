// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint_read.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/file_shares.h"

namespace moonhalo::io {
namespace {

constexpr const char* kWho = "checkpoint.load";

int64_t bytes_of(const StoredTensor& tensor) { return tensor.end - tensor.begin; }

/// Whether a file's bytes can go where the tensor lies.
bool takes_bytes(const at::Tensor& target, const StoredTensor& tensor) {
  return target.is_cpu() && target.is_contiguous() && target.scalar_type() == tensor.dtype && !target.is_conj() &&
         !target.is_neg();
}

bool same_box(const Box& one, const Box& other) { return (one.empty() && other.empty()) || one == other; }

}  // namespace

void CheckpointReader::add(const std::string& name, const std::string& path, const SafetensorsText& text) {
  File file{.path = path, .tensors = {}, .opened = nullptr};
  for (StoredTensor& tensor : parse_safetensors(path, text).tensors) file.tensors[tensor.name] = std::move(tensor);
  files_[name] = std::move(file);
}

const StoredTensor* CheckpointReader::find(const std::string& file, const std::string& tensor) const {
  const auto found = files_.find(file);
  if (found == files_.end()) return nullptr;
  const auto named = found->second.tensors.find(tensor);
  return named == found->second.tensors.end() ? nullptr : &named->second;
}

void CheckpointReader::read(File& file, const StoredTensor& tensor, const Extent& extent, const Box& box, void* data) {
  try {
    if (failed_ || box.empty()) return;
    if (!file.opened) file.opened = std::make_shared<PositionedFile>(PositionedFile::open_to_read(kWho, file.path));
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

void CheckpointReader::read_plain(File& file, const StoredTensor& tensor, const at::Tensor& target) {
  const at::Tensor data = takes_bytes(target, tensor) ? target : empty_block(tensor.shape, tensor.dtype);
  const int64_t ranks = world_.size(), bytes = bytes_of(tensor);
  const Extent as_bytes{{bytes}, 1};
  if (ranks == 1 || bytes <= kSmallBytes) {
    read(file, tensor, as_bytes, Box{{0, bytes}}, data.mutable_data_ptr());
  } else {
    const std::vector<int64_t> counts = balanced_sizes(bytes, ranks);
    int64_t begin = 0;
    for (int rank = 0; rank < world_.rank(); ++rank) begin += counts[rank];
    at::Tensor part = empty_block({counts[world_.rank()]}, at::kByte);
    read(file, tensor, as_bytes, Box{{begin, begin + part.numel()}}, part.mutable_data_ptr());
    at::Tensor whole = at::from_blob(data.mutable_data_ptr(), {bytes}, at::kByte);
    world_.all_gather(part, counts, whole);
  }
  if (!data.is_same(target)) target.copy_(data);
}

void CheckpointReader::read_block(File& file, const StoredTensor& tensor, const at::Tensor& target) {
  const SpecPtr& held = spec(target);
  const MeshPtr& mesh = held->mesh();
  const at::Tensor block = to_local(target);
  std::vector<int64_t>& bytes = bytes_by_rank_[mesh.get()];
  bytes.resize(mesh->size());
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const FileShares shares = share_out(*held, element_bytes, bytes);
  const auto block_of = [&](int64_t rank) { return held->ndim() == 0 ? Box{{0, 1}} : block_box(*held, rank); };
  bool apart = bytes_of(tensor) <= kSmallBytes;  // each rank reads its own block
  if (!apart) {
    apart = true;
    for (int64_t rank = 0; rank < mesh->size(); ++rank) apart &= same_box(shares.boxes[rank], block_of(rank));
  }
  const Box box = apart ? block_of(mesh->rank()) : shares.boxes[mesh->rank()];
  const bool in_place = apart && takes_bytes(block, tensor);
  at::Tensor data =
      in_place ? block : empty_block(held->ndim() == 0 ? std::vector<int64_t>{} : box.shape(), tensor.dtype);
  read(file, tensor, {shares.shape, element_bytes}, box, data.mutable_data_ptr());
  if (in_place) return;
  data = data.to(block.device());
  if (!apart) {
    const IntervalMap map({mesh, held->global_shape(), [&](int64_t rank) { return shares.boxes[rank]; },
                           [](int64_t, int64_t) { return true; }},
                          [&](int64_t rank) { return requests_for(block_box(*held, rank)); });
    data = gather(map, data);
  }
  block.copy_(data);
}

void CheckpointReader::read_into(const std::string& file, const std::string& tensor, const at::Tensor& target) {
  File& from = files_.at(file);
  const StoredTensor& stored = from.tensors.at(tensor);
  TORCH_INTERNAL_ASSERT(target.sizes() == at::IntArrayRef(stored.shape), "a tensor is read into one of another shape");
  const at::NoGradGuard no_grad;
  if (!is_shard_tensor(target)) {
    read_plain(from, stored, target);
  } else if (spec(target)->has_partial()) {
    const at::Tensor whole = empty_block(stored.shape, stored.dtype);
    read_plain(from, stored, whole);
    target.copy_(whole);
  } else {
    read_block(from, stored, target);
  }
  if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();  // of what the disk wrote
}

void CheckpointReader::finish() {
  fail_together(world_, [&] {
    if (failed_) std::rethrow_exception(failed_);
  });
}

}  // namespace moonhalo::io
