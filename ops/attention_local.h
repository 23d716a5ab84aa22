// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moonhalo {

/// What all blocks of one attention have in common. Rows of queries and keys are counted in the whole sequences.
struct AttentionCall {
  double scale = 1;
  bool is_causal = false;  ///< query i sees the keys 0 to i
  double dropout_p = 0;
  uint64_t dropout_key =
      0;  ///< score i of the whole [batch.., heads, queries, keys] draws from it as element i
  int64_t queries = 0, keys = 0;  ///< of the whole sequences
  /// For dropout: which (batch, head) of the whole tensor each of the block is, flattened.
  std::vector<int64_t> lines = {};
};

/// Where the first query and the first key of a block stand in the whole sequences.
struct AttentionPlace {
  int64_t query = 0, key = 0;
};

/// float32 for reduced types, else the type itself: of logsumexp and of sums over blocks.
at::ScalarType attention_sum_type(at::ScalarType query);

/// Results of queries that have seen some of the keys: [batch, heads, rows, value_dim] and [batch, heads, rows] in the sum type.
/// More keys are merged in by log-sum-exp; a query that has seen none has 0 and -inf.
struct AttentionSums {
  AttentionSums(const at::Tensor& query, int64_t value_dim);
  /// Some of the rows, in the same memory.
  AttentionSums rows(int64_t row, int64_t count) const;
  /// Adds what the rows from `row` on have seen of other keys.
  void add(int64_t row, const at::Tensor& more, const at::Tensor& more_logsumexp);

  at::Tensor output, logsumexp;

 private:
  AttentionSums() = default;
};

/// [lead.., rows, features] as [batch, heads, rows, features], heads being the last of lead.
at::Tensor attention_four_dims(const at::Tensor& t);
/// The same with the features of a row beside one another, as the kernels want them.
at::Tensor attention_packed_rows(const at::Tensor& t);
/// A mask that broadcasts to [lead.., rows, keys] of `query`'s lead, in four dims; and a gradient of that in the mask's shape.
at::Tensor attention_mask_four_dims(const at::Tensor& mask, const at::Tensor& query);
at::Tensor attention_mask_gradient(const at::Tensor& gradient, const at::Tensor& mask,
                                   const at::Tensor& query);

/// Attention of a block of queries to a block of keys, merged into `sums` (of the same queries). Plain CPU tensors, no autograd:
///     query [batch, heads, rows, head_dim], key [batch, heads / n, keys, head_dim], value [batch, heads / n, keys, value_dim]
///     mask  undefined, or 4 dims that broadcast to [batch, heads, rows, keys]: bool (true: seen) or added to the scores
/// LibTorch's flash kernel, so no scores are held; with dropout they are, some rows at a time. Keys that no query of the block
/// may see are not looked at.
void attend(const AttentionCall& call, AttentionPlace place, const at::Tensor& query,
            const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask,
            AttentionSums& sums);

/// Gradients of a block, in the sum type, added to what is there. `mask` may be undefined: not wanted.
struct AttentionGradients {
  at::Tensor query, key, value, mask;
};

/// Adds what this block gives to the gradients of its tensors. `output` and `logsumexp` are those of the whole attention:
/// exp(score - logsumexp) is then the weight of a key among all keys, so blocks need not know of one another.
/// Source: T. Dao et al., FlashAttention, 2022, section 3.
void attend_backward(const AttentionCall& call, AttentionPlace place, const at::Tensor& grad_output,
                     const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& mask, const at::Tensor& output, const at::Tensor& logsumexp,
                     const AttentionGradients& gradients);

}  // namespace moonhalo
