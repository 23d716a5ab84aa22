// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/pytorch/pt_file.h"

namespace moonhalo::io {
namespace {

/// A box of a strided tensor as runs of its storage: `outer` dims are visited one by one, and the elements of the
/// others are between the first and the last element of one run.
struct Runs {
  std::vector<int64_t> order;           ///< the dims from the largest stride to the smallest
  size_t outer = 0;                     ///< how many of them are visited
  std::vector<int64_t> sizes, strides;  ///< of the box, in this order
  int64_t first = 0;                    ///< element of the storage where the box begins
  int64_t span = 1;                     ///< elements of a run
  bool contiguous = true;               ///< a run has no other elements, and is row-major
};

Runs runs_of(const PtTensor& tensor, const Box& box) {
  Runs runs;
  runs.order.resize(tensor.shape.size());
  std::iota(runs.order.begin(), runs.order.end(), 0);
  std::stable_sort(runs.order.begin(), runs.order.end(),
                   [&](int64_t a, int64_t b) { return tensor.strides[a] > tensor.strides[b]; });
  runs.first = tensor.offset;
  for (const int64_t dim : runs.order) {
    runs.sizes.push_back(box[dim].size());
    runs.strides.push_back(tensor.strides[dim]);
    runs.first += box[dim].begin * tensor.strides[dim];
  }
  // Inner dims are one run as long as one follows the other without a gap. The innermost always is.
  runs.outer = runs.order.size();
  int64_t reach = 1;  // elements of the inner dims where no gap is between them
  while (runs.outer > 0) {
    const size_t dim = runs.outer - 1;
    const bool joins = runs.strides[dim] == reach || runs.sizes[dim] == 1;
    if (!joins && runs.outer < runs.order.size()) break;
    runs.contiguous = runs.contiguous && joins;
    runs.span += (runs.sizes[dim] - 1) * runs.strides[dim];
    reach = joins ? reach * runs.sizes[dim] : -1;
    --runs.outer;
  }
  return runs;
}

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
  const at::Tensor block = empty_block(box.shape(), at::TensorOptions(tensor.dtype));
  if (block.numel() == 0) return block;
  const Runs runs = runs_of(tensor, box);
  const auto bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const at::Tensor ordered = block.permute(runs.order);
  const bool in_place = runs.contiguous && ordered.is_contiguous();
  const at::Tensor run = in_place ? at::Tensor() : empty_block({runs.span}, at::TensorOptions(tensor.dtype));
  const at::IntArrayRef sizes(runs.sizes), strides(runs.strides);
  auto* next = static_cast<char*>(block.mutable_data_ptr());
  std::vector<int64_t> index(runs.outer, 0);
  for (;;) {
    int64_t first = runs.first;
    for (size_t i = 0; i < runs.outer; ++i) first += index[i] * runs.strides[i];
    file_.read_at(in_place ? next : run.mutable_data_ptr(), runs.span * bytes, tensor.storage_begin + first * bytes);
    io_stats().stored += runs.span * bytes;
    if (in_place) {
      next += runs.span * bytes;
    } else {
      at::Tensor target = ordered;
      for (const int64_t i : index) target = target.select(0, i);
      target.copy_(run.as_strided(sizes.slice(runs.outer), strides.slice(runs.outer)));
    }
    size_t dim = runs.outer;
    while (dim > 0 && ++index[dim - 1] == runs.sizes[dim - 1]) index[--dim] = 0;
    if (dim == 0) return with_signs(block, tensor).resolve_neg().resolve_conj();
  }
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
