// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/neighborhood/module.h"

#include <ATen/ATen.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::nn {

NeighborhoodAttentionImpl::NeighborhoodAttentionImpl(int64_t dims, NeighborhoodAttentionOptions o)
    : options(std::move(o)), dims_(dims) {
  NeighborhoodAttentionImpl::reset();
}

void NeighborhoodAttentionImpl::reset() {
  const int64_t embed_dim = options.embed_dim, heads = options.num_heads;
  TORCH_CHECK_VALUE(heads > 0 && embed_dim > 0 && embed_dim % heads == 0, "NeighborhoodAttention", dims_,
                    "d: embed_dim ", embed_dim, " is not divisible by num_heads ", heads);
  const auto linear = [&](int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(embed_dim, out).bias(options.bias));
  };
  qkv = register_module("qkv", linear(3 * embed_dim));
  proj = register_module("proj", linear(embed_dim));
}

void NeighborhoodAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "moonhalo::nn::NeighborhoodAttention" << dims_ << "d(embed_dim=" << options.embed_dim
         << ", num_heads=" << options.num_heads << ", window=" << shape_string(options.neighborhood.window) << ")";
}

at::Tensor NeighborhoodAttentionImpl::forward(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() == dims_ + 2, "NeighborhoodAttention", dims_, "d: the input has ", x.dim(),
                    " dims, expected ", dims_ + 2, "\n  have  ", shape_string(x.sizes()), "\n  fix   give [batch, ",
                    dims_, " dims, embed_dim]");
  std::vector<int64_t> heads = x.sizes().vec();
  heads.back() = 3;
  heads.insert(heads.end(), {options.num_heads, options.embed_dim / options.num_heads});
  const at::Tensor parts = qkv->forward(x).reshape(heads);
  const auto attended = neighborhood_attention(parts.select(-3, 0), parts.select(-3, 1), parts.select(-3, 2),
                                               options.neighborhood, options.scale);
  return proj->forward(std::get<0>(attended).flatten(-2));
}

}  // namespace moonhalo::nn
