// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/unsharded_cache.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"
#include "moonhalo/engine/tensor/stored_views.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo {

// A tensor remembers this of the cache that it looks into.
struct GatherMeta {
  std::shared_ptr<UnshardedCache> kept;  // null: the tensor is result `index` of `view`
  uint64_t values, writes;
  uint32_t block_version;
  std::weak_ptr<const WriteCount> count;
  std::shared_ptr<const CallOnStored> view = {};
  size_t index = 0;
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

// Result `index` of the call on another tensor.
at::Tensor result_on(const at::Tensor& tensor, const CallOnStored& call, size_t index) {
  torch::jit::Stack stack(call.arguments);
  stack[0] = tensor;
  call.op.callBoxed(stack);
  return stack[0].isTensorList() ? stack[0].toTensorVector().at(index) : stack[0].toTensor();
}

// Makes of the cached tensor what `tensor` is of the stored one. Returns an undefined tensor if nothing is cached, or
// if ranks have blocks of it: the arguments of a view are those for a whole tensor.
at::Tensor cached_view(const at::Tensor& tensor) {
  if (const UnshardedCache* kept = unsharded_cache(tensor))
    return kept->spec->is_replicate() ? kept->whole : at::Tensor();
  const ShardTensorMeta* notes = notes_of(*tensor.unsafeGetTensorImpl());
  if (notes == nullptr || !notes->gathered || !notes->gathered->view) return {};
  const GatherMeta& note = *notes->gathered;
  if (!note.view->is_of_tensor()) return {};
  const at::Tensor whole = cached_view(note.view->arguments[0].toTensor());
  return whole.defined() ? result_on(whole, *note.view, note.index) : whole;
}

// This rank's block of a tensor that it has the whole of.
at::Tensor own_part(at::Tensor whole, const ShardSpec& spec) {
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    if (spec.is_cut(d)) whole = whole.narrow(d, spec.offsets()[d], spec.local_shape()[d]);
  }
  return whole;
}

}  // namespace

std::shared_ptr<const CallOnStored> call_on_stored(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  if (!arguments[0].isTensor() || !arguments[0].toTensor().defined()) return nullptr;
  ShardTensorImpl* impl = shard_impl(arguments[0].toTensor());
  if (impl == nullptr || !impl->spec()->has_stored()) return nullptr;
  const ShardTensorMeta* notes = notes_of(*impl);
  if (notes == nullptr || !notes->gathered) return nullptr;
  const auto is_tensor = [](const c10::IValue& value) { return value.isTensor(); };
  if (std::any_of(arguments.begin() + 1, arguments.end(), is_tensor)) return nullptr;  // _make_dual
  return std::make_shared<const CallOnStored>(CallOnStored{op, arguments.vec(), impl->spec(), impl->local().storage()});
}

bool CallOnStored::is_of_tensor() const {
  const ShardTensorImpl* impl = shard_impl(arguments[0].toTensor());
  return impl->spec() == spec && impl->local().storage().is_alias_of(storage);
}

void note_view(const at::Tensor& view, std::shared_ptr<const CallOnStored> call, size_t index) {
  make_notes(*shard_impl(view)).gathered =
      std::make_shared<GatherMeta>(GatherMeta{.view = std::move(call), .index = index});
}

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
  return notes != nullptr && notes->gathered && notes->gathered->kept;
}

const UnshardedCache* unsharded_cache(const at::Tensor& tensor) {
  ShardTensorImpl* impl = shard_impl(tensor);
  const ShardTensorMeta* notes = impl != nullptr ? notes_of(*impl) : nullptr;
  if (notes == nullptr || !notes->gathered) return nullptr;
  const GatherMeta& note = *notes->gathered;
  if (!note.kept) return nullptr;
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
  const UnshardedCache* own = unsharded_cache(tensor);
  if (own != nullptr && own->spec == required) return own->whole;
  if (!required->has_partial() && !tensor.is_complex()) {
    const at::Tensor view = cached_view(tensor);
    if (view.defined() && view.scalar_type() == tensor.scalar_type()) return own_part(view, *required);
  }
  if (own != nullptr) return {};
  // LibTorch's formulas transpose a weight, and transpose it again. A view of a complex one may be its conjugate.
  if (!tensor.is_view() || tensor.dim() != 2 || tensor.is_complex() || copied_memory(*shard_impl(tensor))) return {};
  const at::Tensor matrix(tensor._base());
  if (tensor.scalar_type() != matrix.scalar_type()) return {};
  const ShardTensorImpl &view = *shard_impl(tensor), &base = *shard_impl(matrix);
  // The matrix may have another block or cut since (`.data = `, `t_()`).
  if (!view.local().storage().is_alias_of(base.local().storage())) return {};
  const bool same = view.spec() == base.spec() && tensor.strides() == matrix.strides();
  if (!same && (!is_transpose(tensor, matrix) || view.spec() != transposed_spec(base.spec()))) return {};
  const UnshardedCache* kept = unsharded_cache(matrix);
  if (kept == nullptr || (same ? kept->spec : kept->transposed) != required) return {};
  return same ? kept->whole : kept->whole.t();
}

}  // namespace moonhalo
