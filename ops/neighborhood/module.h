// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "moonhalo/ops/neighborhood/operator.h"

/// Modules for torch::nn models, as mh.nn has them in Lua. (Not part of moonhalo.h: torch::nn is slow to compile.)
namespace moonhalo::nn {

struct NeighborhoodAttentionOptions {
  int64_t embed_dim = 0;  ///< a multiple of num_heads
  int64_t num_heads = 1;
  Neighborhood neighborhood = {};
  bool bias = true;                            ///< of both projections
  std::optional<double> scale = std::nullopt;  ///< default 1 / sqrt(embed_dim / num_heads)
};

/// Self-attention within neighbourhoods: x [batch, dims..., embed_dim] is projected to query, key and value
/// (`qkv`), attended by neighborhood_attention with `num_heads` heads, and projected again (`proj`). Same shape
/// out; plain or ShardTensor. ValueError when embed_dim is not a multiple of num_heads, or x has another number of
/// dims.
class NeighborhoodAttentionImpl : public torch::nn::Cloneable<NeighborhoodAttentionImpl> {
 public:
  NeighborhoodAttentionImpl(int64_t dims, NeighborhoodAttentionOptions options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  at::Tensor forward(const at::Tensor& x);

  NeighborhoodAttentionOptions options;
  torch::nn::Linear qkv{nullptr}, proj{nullptr};

 private:
  int64_t dims_;
};

template <int64_t kDims>
class NeighborhoodAttentionNd : public torch::nn::ModuleHolder<NeighborhoodAttentionImpl> {
 public:
  using torch::nn::ModuleHolder<NeighborhoodAttentionImpl>::ModuleHolder;
  NeighborhoodAttentionNd(NeighborhoodAttentionOptions options)
      : ModuleHolder(std::make_shared<NeighborhoodAttentionImpl>(kDims, std::move(options))) {}
};
using NeighborhoodAttention1d = NeighborhoodAttentionNd<1>;
using NeighborhoodAttention2d = NeighborhoodAttentionNd<2>;
using NeighborhoodAttention3d = NeighborhoodAttentionNd<3>;

}  // namespace moonhalo::nn
