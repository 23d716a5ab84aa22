// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/strided_read.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/pytorch/pt_file.h"

namespace moonhalo::io {
namespace {

at::Tensor with_signs(const at::Tensor& stored, const PtTensor& tensor) {
  const at::Tensor positive = tensor.neg ? at::_neg_view(stored) : stored;
  return tensor.conj ? at::_conj(positive) : positive;
}

}  // namespace

at::Tensor PtFile::read(const PtTensor& tensor) {
  const at::Tensor empty = at::empty({0}, at::TensorOptions(tensor.dtype));
  if (tensor.storage_bytes == 0) return at::empty(tensor.shape, empty.options());
  const std::pair place(tensor.storage_begin, tensor.storage_bytes);
  const auto known = storages_.find(place);
  at::Storage storage = known == storages_.end() ? at::Storage() : at::Storage(known->second.lock());
  if (!storage) {
    const at::Tensor bytes = empty_block({tensor.storage_bytes}, at::kByte);
    file_.read_at(bytes.mutable_data_ptr(), tensor.storage_bytes, tensor.storage_begin);
    io_stats().stored += tensor.storage_bytes;
    storage = bytes.storage();
    storages_.insert_or_assign(place, storage.getWeakStorageImpl());
  }
  const at::NoGradGuard no_grad;
  const at::Tensor read = empty.set_(storage, tensor.offset, tensor.shape, tensor.strides);
  return with_signs(read, tensor);
}

at::Tensor PtFile::read_block(const PtTensor& tensor, const Box& box) {
  const auto read = [&](int64_t begin, int64_t bytes, void* target) {
    file_.read_at(target, bytes, tensor.storage_begin + begin);
    io_stats().stored += bytes;
  };
  const at::Tensor block = read_strided_box(box, tensor.strides, tensor.offset, tensor.dtype, read);
  return with_signs(block, tensor).resolve_neg().resolve_conj();
}

at::Tensor PtFile::read_for(const PtTensor& tensor, const at::Tensor& target) {
  TORCH_INTERNAL_ASSERT(target.sizes() == at::IntArrayRef(tensor.shape), "a tensor is read for one of another shape");
  const at::NoGradGuard no_grad;
  Box whole;
  for (const int64_t size : tensor.shape) whole.push_back({0, size});
  if (!is_shard_tensor(target) || spec(target)->has_partial() || tensor.shape.empty()) return read_block(tensor, whole);
  const SpecPtr& held = spec(target);
  return from_local(read_block(tensor, block_box(*held, held->mesh()->rank())), held);
}

}  // namespace moonhalo::io
