// SPDX-License-Identifier: Apache-2.0
// Gradients of rows that were read from a cut dim. LibTorch's formulas add them to zeros of the table's shape, which
// know nothing of its blocks; so these operators are intercepted above autograd, where the table is known, and its
// gradient is made in the table's own cut: sums are sent to the ranks that have the rows, and nothing else.
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

using c10::DispatchKeySet;
using torch::autograd::SavedVariable;
using Indices = c10::List<std::optional<at::Tensor>>;

constexpr DispatchKeySet kBelow(DispatchKeySet::FULL_AFTER, kSparseCheckKey);

// True if the gradient of this table, whose dim is indexed, is made here.
bool needs_rows(const at::Tensor& table, int64_t dim) {
  const ShardTensorImpl* impl = table.defined() ? shard_impl(table) : nullptr;
  if (impl == nullptr || dim < -table.dim() || dim >= table.dim()) return false;
  const bool recorded = c10::GradMode::is_enabled() && table.requires_grad();
  if (!recorded && !table._fw_grad(/*level=*/0).defined()) return false;
  return impl->spec()->is_cut(at::maybe_wrap_dim(dim, table.dim())) && !impl->spec()->has_stored();
}

// An index as it was when rows were read; a later write to it is an error, as for all that autograd saves.
class SavedIndex {
 public:
  explicit SavedIndex(const at::Tensor& index) : saved_(std::make_shared<SavedVariable>(index, /*is_output=*/false)) {}
  at::Tensor get() const { return saved_->unpack(); }

 private:
  std::shared_ptr<SavedVariable> saved_;
};

// Zeros of a table's spec that take no memory.
at::Tensor zeros_of(const SpecPtr& spec, const at::Tensor& grad) {
  const at::Tensor zero = at::zeros({}, grad.options().layout(at::kStrided));
  return wrap(zero.expand(spec->local_shape()), spec);
}

// `read` is linear in the table, and `add` adds a gradient to zeros.
template <typename Read, typename Add>
at::Tensor record(const at::Tensor& table, const Read& read, Add add) {
  const auto plainly = [read](const at::Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard once(kSparseCheckKey);
    return read(x);
  };
  at::Tensor result = plainly(table);
  const bool recorded = c10::GradMode::is_enabled() && table.requires_grad();
  if (recorded) install_gradient_hook(table);
  const SpecPtr spec = without_partial(moonhalo::spec(table));
  attach_backward(
      table, result, [spec, add](const at::Tensor& grad) { return add(zeros_of(spec, grad), grad); }, plainly);
  return result;
}

// The cut of a table's gradient, of which `grad` is a part. A sum over ranks that all have the table stays one, to be
// reduced together with others.
SpecPtr gradient_spec(const SpecPtr& table, const at::Tensor& grad) {
  const ShardTensorImpl* impl = shard_impl(grad);
  if (impl == nullptr || impl->spec()->mesh() != table->mesh()) return table;
  Layout layout = table->layout();
  for (int64_t m = 0; m < table->mesh()->ndim(); ++m) {
    if (impl->spec()->partial(m) == ReduceOp::kSum && !table->layout().uses(m)) layout.partials[m] = ReduceOp::kSum;
  }
  return intern(std::move(layout));
}

// A view, which stays one: only its gradient function is replaced. That of LibTorch makes zeros of the whole dim on
// every rank. A tensor with a tangent keeps it.
at::Tensor read_row(DispatchKeySet keys, const at::Tensor& self, int64_t dim, c10::SymInt index) {
  if (!needs_rows(self, dim) || self._fw_grad(/*level=*/0).defined())
    return at::_ops::select_int::redispatch(keys & kBelow, self, dim, std::move(index));
  const at::Tensor row = at::_ops::select_int::redispatch(keys & kBelow, self, dim, index);
  const SpecPtr spec = without_partial(moonhalo::spec(self));
  attach_backward(self, row, [spec, dim, index = index.expect_int()](const at::Tensor& grad) {
    return zeros_of(gradient_spec(spec, grad), grad).select_scatter(grad, dim, index);
  });
  return row;
}

at::Tensor read_rows(DispatchKeySet keys, const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  if (keys.has_any(c10::sparse_ks | c10::sparse_csr_ks) && keys.has(kShardKey)) {
    check_strided(self, "aten::index_select");
    check_strided(index, "aten::index_select");
  }
  if (!needs_rows(self, dim)) return at::_ops::index_select::redispatch(keys & kBelow, self, dim, index);
  return record(
      self, [dim, index](const at::Tensor& table) { return table.index_select(dim, index); },
      [dim, saved = SavedIndex(index)](const at::Tensor& zeros, const at::Tensor& grad) {
        return zeros.index_add(dim, saved.get(), grad);
      });
}

at::Tensor read_elements(DispatchKeySet keys, const at::Tensor& self, int64_t dim, const at::Tensor& index,
                         bool sparse_grad) {
  if (sparse_grad || index.dim() != self.dim() || !needs_rows(self, dim))
    return at::_ops::gather::redispatch(keys & kBelow, self, dim, index, sparse_grad);
  return record(
      self, [dim, index](const at::Tensor& table) { return table.gather(dim, index); },
      [dim, saved = SavedIndex(index)](const at::Tensor& zeros, const at::Tensor& grad) {
        return zeros.scatter_add(dim, saved.get(), grad);
      });
}

// The dims that are indexed; none where a mask is among the indices.
std::vector<int64_t> indexed_dims(const Indices& indices) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < indices.size(); ++d) {
    const std::optional<at::Tensor> index = indices.get(d);
    if (!index || !index->defined()) continue;
    if (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte) return {};
    dims.push_back(static_cast<int64_t>(d));
  }
  return dims;
}

at::Tensor read_indexed(DispatchKeySet keys, const at::Tensor& self, const Indices& indices) {
  const auto dims = indexed_dims(indices);
  if (!std::any_of(dims.begin(), dims.end(), [&](int64_t d) { return needs_rows(self, d); }))
    return at::_ops::index_Tensor::redispatch(keys & kBelow, self, indices);
  std::vector<SavedIndex> saved;
  for (const int64_t d : dims) saved.emplace_back(*indices.get(d));
  return record(
      self, [indices](const at::Tensor& table) { return at::index(table, indices); },
      [dims, saved](const at::Tensor& zeros, const at::Tensor& grad) {
        Indices list;
        for (size_t i = 0; i < dims.size(); ++i) {
          while (static_cast<int64_t>(list.size()) < dims[i]) list.push_back(std::nullopt);
          list.push_back(saved[i].get());
        }
        return at::index_put(zeros, list, grad, /*accumulate=*/true);
      });
}

at::Tensor read_words(DispatchKeySet keys, const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding,
                      bool scale_grad_by_freq, bool sparse) {
  if (scale_grad_by_freq || sparse || weight.dim() != 2 || !needs_rows(weight, 0)) {
    return at::_ops::embedding::redispatch(keys & kBelow, weight, indices, std::move(padding), scale_grad_by_freq,
                                           sparse);
  }
  const int64_t ignored = padding.expect_int();
  return record(
      weight, [indices, ignored](const at::Tensor& table) { return at::embedding(table, indices, ignored); },
      [ignored, saved = SavedIndex(indices)](const at::Tensor& zeros, const at::Tensor& grad) {
        const at::Tensor words = saved.get();
        const at::Tensor counted = ignored < 0 ? grad : grad.masked_fill(words.eq(ignored).unsqueeze(-1), 0);
        return at::index_put(zeros, {words}, counted, /*accumulate=*/true);
      });
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  library.impl("select.int", TORCH_FN(read_row));
  library.impl("index_select", TORCH_FN(read_rows));
  library.impl("gather", TORCH_FN(read_elements));
  library.impl("index.Tensor", TORCH_FN(read_indexed));
  library.impl("embedding", TORCH_FN(read_words));
}

}  // namespace
}  // namespace moonhalo
