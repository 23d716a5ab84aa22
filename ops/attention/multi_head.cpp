// SPDX-License-Identifier: Apache-2.0
// The fused kernels that nn.MultiheadAttention and nn.TransformerEncoderLayer call where no gradients are asked for,
// made of the operators that the modules call otherwise, which all have rules:
//
//     x [batch, sequence, embedding]   linear   heads [batch, head, sequence, embedding / heads]   attention   linear
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>

#include "moonhalo/engine/base/text.h"

namespace moonhalo {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr const char* kMultiHead = "_native_multi_head_attention";

void check_multi_head(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t embed_dim,
                      int64_t num_head, const at::Tensor& qkv_weight, const at::Tensor& qkv_bias) {
  const auto have = [&] {
    return c10::str("\n  have  query ", shape_string(query.sizes()), ", key ", shape_string(key.sizes()), ", value ",
                    shape_string(value.sizes()), ", embed_dim ", embed_dim, ", num_head ", num_head, ", qkv_weight ",
                    shape_string(qkv_weight.sizes()), ", qkv_bias ", shape_string(qkv_bias.sizes()));
  };
  TORCH_CHECK_VALUE(
      query.dim() == 3 && query.size(2) == embed_dim && key.sizes() == query.sizes() && value.sizes() == query.sizes(),
      kMultiHead, ": query, key and value are not the same [batch, sequence, embed_dim]", have());
  TORCH_CHECK_VALUE(num_head > 0 && embed_dim % num_head == 0, kMultiHead, ": num_head does not divide embed_dim",
                    have());
  TORCH_CHECK_VALUE(qkv_weight.sizes() == at::IntArrayRef({3 * embed_dim, embed_dim}) &&
                        qkv_bias.sizes() == at::IntArrayRef({3 * embed_dim}),
                    kMultiHead, ": qkv_weight is not [3 embed_dim, embed_dim] or qkv_bias not [3 embed_dim]", have());
}

// True where a query must not see a key, in a shape that broadcasts to [batch, head, queries, keys]. The mask of
// floating point numbers that the modules make of two masks is 0 where a key is seen.
OptionalTensor hidden_keys(const OptionalTensor& mask, std::optional<int64_t> mask_type, at::IntArrayRef scores) {
  if (!mask || !mask->defined()) return std::nullopt;
  const int64_t batch = scores[0], length = scores[3];
  const auto must_be = [&](at::IntArrayRef shape) {
    TORCH_CHECK_VALUE(mask->sizes() == shape, kMultiHead, ": a mask ", shape_string(mask->sizes()), " of mask_type ",
                      *mask_type, " instead of ", shape_string(shape), "\n  have  scores ", shape_string(scores),
                      "\n  fix   mask_type 0 is [queries, keys], 1 is [batch, keys], 2 is as the scores");
  };
  TORCH_CHECK_VALUE(mask_type && *mask_type >= 0 && *mask_type <= 2, kMultiHead,
                    ": a mask without a mask_type of 0, 1 or 2", "\n  have  a mask ", shape_string(mask->sizes()),
                    ", scores ", shape_string(scores),
                    "\n  fix   mask_type 0 is [queries, keys], 1 is [batch, keys], 2 is as the scores");
  const at::Tensor hidden = mask->scalar_type() == at::kBool ? *mask : mask->to(at::kBool);
  if (*mask_type == 0) must_be({length, length});
  if (*mask_type == 2) must_be(scores);
  if (*mask_type != 1) return hidden;
  must_be({batch, length});
  return hidden.unsqueeze(1).unsqueeze(2);
}

// A query that sees no key has no softmax, and so no value.
at::Tensor nan_where_all_hidden(const at::Tensor& output, const at::Tensor& hidden) {
  return output.masked_fill(hidden.all(-1, /*keepdim=*/true), std::numeric_limits<double>::quiet_NaN());
}

std::tuple<at::Tensor, at::Tensor> multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                                        const at::Tensor& value, int64_t embed_dim, int64_t num_head,
                                                        const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                                        const at::Tensor& proj_weight, const at::Tensor& proj_bias,
                                                        const OptionalTensor& mask, bool need_weights,
                                                        bool average_attn_weights, std::optional<int64_t> mask_type) {
  check_multi_head(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias);
  const int64_t batch = query.size(0), length = query.size(1), per_head = embed_dim / num_head;
  std::array<at::Tensor, 3> parts;
  if (query.is_same(key) && query.is_same(value)) {
    const auto chunks = at::linear(query, qkv_weight, qkv_bias).chunk(3, -1);
    std::copy(chunks.begin(), chunks.end(), parts.begin());
  } else {
    const auto weights = qkv_weight.chunk(3), biases = qkv_bias.chunk(3);
    const std::array<at::Tensor, 3> inputs = {query, key, value};
    for (size_t i = 0; i < 3; ++i) parts[i] = at::linear(inputs[i], weights[i], biases[i]);
  }
  for (at::Tensor& part : parts) part = part.reshape({batch, length, num_head, per_head}).transpose(1, 2);
  const auto& [q, k, v] = parts;
  const OptionalTensor hidden = hidden_keys(mask, mask_type, {batch, num_head, length, length});
  at::Tensor weights, heads;
  if (need_weights) {
    at::Tensor scores = at::matmul(q / std::sqrt(static_cast<double>(per_head)), k.transpose(-2, -1));
    if (hidden) scores = scores.masked_fill(*hidden, -std::numeric_limits<double>::infinity());
    weights = scores.softmax(-1);
    heads = at::matmul(weights, v);
    if (average_attn_weights) weights = weights.mean(1);
  } else {
    heads = at::scaled_dot_product_attention(q, k, v, hidden ? OptionalTensor(hidden->logical_not()) : std::nullopt);
    if (hidden) heads = nan_where_all_hidden(heads, *hidden);
  }
  return {at::linear(heads.transpose(1, 2).reshape({batch, length, embed_dim}), proj_weight, proj_bias), weights};
}

at::Tensor transformer_encoder_layer(const at::Tensor& src, int64_t embed_dim, int64_t num_heads,
                                     const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                     const at::Tensor& proj_weight, const at::Tensor& proj_bias, bool use_gelu,
                                     bool norm_first, double eps, const at::Tensor& norm_weight_1,
                                     const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2,
                                     const at::Tensor& norm_bias_2, const at::Tensor& ffn_weight_1,
                                     const at::Tensor& ffn_bias_1, const at::Tensor& ffn_weight_2,
                                     const at::Tensor& ffn_bias_2, const OptionalTensor& mask,
                                     std::optional<int64_t> mask_type) {
  if (src.numel() == 0) return src.clone();
  const auto first_norm = [&](const at::Tensor& x) {
    return at::layer_norm(x, {embed_dim}, norm_weight_1, norm_bias_1, eps);
  };
  const auto second_norm = [&](const at::Tensor& x) {
    return at::layer_norm(x, {embed_dim}, norm_weight_2, norm_bias_2, eps);
  };
  const auto attend = [&](const at::Tensor& x) {
    return std::get<0>(multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                            mask, /*need_weights=*/false, /*average_attn_weights=*/true, mask_type));
  };
  const auto feed_forward = [&](const at::Tensor& x) {
    const at::Tensor wide = at::linear(x, ffn_weight_1, ffn_bias_1);
    return at::linear(use_gelu ? at::gelu(wide) : at::relu(wide), ffn_weight_2, ffn_bias_2);
  };
  if (norm_first) {
    const at::Tensor x = src + attend(first_norm(src));
    return x + feed_forward(second_norm(x));
  }
  const at::Tensor x = first_norm(src + attend(src));
  return second_norm(x + feed_forward(x));
}

at::Tensor refuse_nested(const at::Tensor& tensor, const at::Tensor& mask, bool /*mask_check*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "_nested_tensor_from_mask: a ShardTensor cannot become a nested tensor\n  have  a tensor ",
      shape_string(tensor.sizes()), ", a mask ", shape_string(mask.sizes()),
      "\n  fix   make the encoder without: nn.TransformerEncoder(layer, n, enable_nested_tensor=False)");
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, library) {
  library.impl("_nested_tensor_from_mask", &refuse_nested);
  library.impl("_native_multi_head_attention", &multi_head_attention);
  library.impl("_transformer_encoder_layer_fwd", &transformer_encoder_layer);
}

}  // namespace
}  // namespace moonhalo
