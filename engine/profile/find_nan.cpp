// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/find_nan.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {

std::string NanPlace::text() const {
  return std::to_string(count) + " of the " + std::to_string(elements) + " elements" +
         (block ? " of this rank's block" : "") + " are NaN, the first at " + shape_string(first) + " of " +
         shape_string(shape);
}

std::optional<NanPlace> find_nan(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || !(tensor.is_floating_point() || tensor.is_complex()))
    return std::nullopt;
  const at::NoGradGuard no_graph;
  const ShardTensorImpl* impl = shard_impl(tensor);
  const at::Tensor local = (impl != nullptr ? impl->local() : tensor).detach();
  if (local.layout() != at::kStrided || local.numel() == 0) return std::nullopt;
  const at::Tensor nan = local.isnan();
  NanPlace place;
  const at::Tensor count = nan.sum();
  if (is_fake(count)) return std::nullopt;
  place.count = count.item<int64_t>();
  if (place.count == 0) return std::nullopt;
  place.elements = local.numel();
  place.shape = tensor.sizes().vec();
  place.block = impl != nullptr;
  int64_t at = nan.flatten().to(at::kByte).argmax().item<int64_t>();
  place.first.resize(local.dim());
  for (int64_t dim = local.dim() - 1; dim >= 0; --dim) {
    place.first[dim] = at % local.size(dim);
    at /= local.size(dim);
  }
  if (impl == nullptr) return place;
  const Box owned = block_box(*impl->spec(), impl->spec()->mesh()->rank());
  for (int64_t dim = 0; dim < owned.ndim() && dim < local.dim(); ++dim) place.first[dim] += owned[dim].begin;
  return place;
}

}  // namespace moonhalo
