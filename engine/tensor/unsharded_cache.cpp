// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/unsharded_cache.h"

#include <c10/util/Exception.h>

#include <utility>

#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo {

// A tensor remembers this of the cache that it looks into.
struct GatherMeta {
  std::shared_ptr<UnshardedCache> kept;
  uint64_t values, writes;
  uint32_t block_version;
  std::weak_ptr<const WriteCount> count;
};

namespace {

uint32_t block_version(const ShardTensorImpl& impl) { return version_of(*impl.local().unsafeGetTensorImpl()); }

// One plain tensor would have these strides only as the transpose of `matrix`, or where both have the same memory.
bool is_transpose(const at::Tensor& tensor, const at::Tensor& matrix) {
  return matrix.dim() == 2 && tensor.dim() == 2 && tensor.size(0) == matrix.size(1) &&
         tensor.size(1) == matrix.size(0) && tensor.stride(0) == matrix.stride(1) &&
         tensor.stride(1) == matrix.stride(0);
}

SpecPtr transposed_spec(const SpecPtr& spec) {
  if (spec->ndim() != 2) return nullptr;
  Layout layout = spec->layout();
  std::swap(layout.global_shape[0], layout.global_shape[1]);
  std::swap(layout.cuts[0], layout.cuts[1]);
  return intern(std::move(layout));
}

}  // namespace

void UnshardedCache::keep(at::Tensor gathered, SpecPtr its_spec, uint64_t values) {
  if (its_spec != spec) transposed = transposed_spec(its_spec);
  whole = std::move(gathered);
  spec = std::move(its_spec);
  of = values;
}

void UnshardedCache::drop() {
  whole = at::Tensor();
  counts.clear();
}

void attach_unsharded_cache(const at::Tensor& tensor, const std::shared_ptr<UnshardedCache>& kept, uint64_t values) {
  ShardTensorImpl& impl = *shard_impl(tensor);
  const auto count = kept->counts.emplace_back(count_writes(impl.local()));
  make_notes(impl).gathered =
      std::make_shared<GatherMeta>(GatherMeta{kept, values, writes_so_far(*count), block_version(impl), count});
}

bool has_unsharded_cache(const at::Tensor& tensor) {
  const ShardTensorMeta* notes = notes_of(*tensor.unsafeGetTensorImpl());
  return notes != nullptr && notes->gathered;
}

const UnshardedCache* unsharded_cache(const at::Tensor& tensor) {
  ShardTensorImpl* impl = shard_impl(tensor);
  const ShardTensorMeta* notes = impl != nullptr ? notes_of(*impl) : nullptr;
  if (notes == nullptr || !notes->gathered) return nullptr;
  const GatherMeta& note = *notes->gathered;
  const UnshardedCache& kept = *note.kept;
  const auto count = note.count.lock();
  if (!kept.whole.defined() || kept.of != note.values || !count || writes_so_far(*count) != note.writes) return nullptr;
  TORCH_CHECK_VALUE(block_version(*impl) == note.block_version,
                    "this rank's block of a parameter was written behind the ShardTensor's back, while all ranks keep "
                    "the whole of it\n",
                    "  have  ", impl->spec()->to_string(), ", rank ", impl->spec()->mesh()->rank(),
                    "'s block at version ", block_version(*impl), ", gathered at ", note.block_version,
                    "\n  fix   write through the ShardTensor, on every rank (not through to_local() or .data())");
  return &kept;
}

at::Tensor reusable_block(const at::Tensor& tensor, const SpecPtr& required) {
  if (const UnshardedCache* kept = unsharded_cache(tensor)) return kept->spec == required ? kept->whole : at::Tensor();
  // LibTorch's formulas transpose a weight, and transpose it again. A view of a complex one may be its conjugate.
  if (!tensor.is_view() || tensor.dim() != 2 || tensor.is_complex() || copied_memory(*shard_impl(tensor))) return {};
  const at::Tensor matrix(tensor._base());
  if (tensor.scalar_type() != matrix.scalar_type()) return {};
  const bool same = tensor.sizes() == matrix.sizes() && tensor.strides() == matrix.strides();
  if (!same && !is_transpose(tensor, matrix)) return {};
  const UnshardedCache* kept = unsharded_cache(matrix);
  if (kept == nullptr || (same ? kept->spec : kept->transposed) != required) return {};
  return same ? kept->whole : kept->whole.t();
}

}  // namespace moonhalo
