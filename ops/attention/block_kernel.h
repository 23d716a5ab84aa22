// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace moonhalo {

/// A score of what is not seen, and the logsumexp of a query that sees nothing.
inline constexpr double kUnseen = -std::numeric_limits<double>::infinity();

/// The settings of all blocks of one attention. Rows of queries and keys are counted in the whole sequences.
struct AttentionCall {
  double scale = 1;
  bool is_causal = false;  ///< query i sees the keys 0 to i
  double dropout_p = 0;
  uint64_t dropout_key = 0;       ///< score i of the whole [batch.., heads, queries, keys] draws from it as element i
  int64_t queries = 0, keys = 0;  ///< of the whole sequences
  /// For dropout: which (batch, head) of the whole tensor each of the block is, flattened.
  std::vector<int64_t> lines = {};
};

/// The places of a block's first query and first key in the whole sequences.
struct AttentionPlace {
  int64_t query = 0, key = 0;
};

/// The checks ask a tensor for its global shape.
struct AttentionOperand {
  AttentionOperand(const at::Tensor& tensor) : shape(tensor.sizes()), type(tensor.scalar_type()) {}
  AttentionOperand(at::IntArrayRef global_shape, at::ScalarType dtype) : shape(global_shape), type(dtype) {}

  at::IntArrayRef shape;
  at::ScalarType type;
};
/// Checks what an attention of any kind asks of its tensors: two dims or more, one floating point type, features
/// and numbers of rows that match, a probability, a mask of that type, float32 or bool. Errors begin with `name`.
void check_attention_tensors(const char* name, const AttentionOperand& query, const AttentionOperand& key,
                             const AttentionOperand& value, const std::optional<AttentionOperand>& mask,
                             double dropout_p);
/// Checks what moonhalo::attention asks of them, which broadcasts only the mask.
void check_attention(const AttentionOperand& query, const AttentionOperand& key, const AttentionOperand& value,
                     const std::optional<AttentionOperand>& mask, double dropout_p);
/// The line "have" of such errors.
std::string attention_shapes(const AttentionOperand& query, const AttentionOperand& key, const AttentionOperand& value,
                             const std::optional<AttentionOperand>& mask);
/// True if this number of heads of keys divides that of queries.
bool attention_groups_fit(int64_t heads, int64_t key_heads);

/// float32 for reduced types, else the type itself: of logsumexp and of sums over blocks.
at::ScalarType attention_sum_type(at::ScalarType query);

/// Results of queries that have seen some of the keys: [batch, heads, rows, value_dim] and [batch, heads, rows] in the
/// sum type.
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
/// A mask that broadcasts to [lead.., rows, keys] of `query`'s lead, in four dims; and a gradient of that in the mask's
/// shape.
at::Tensor attention_mask_four_dims(const at::Tensor& mask, const at::Tensor& query);
at::Tensor attention_mask_gradient(const at::Tensor& gradient, const at::Tensor& mask, const at::Tensor& query);

/// Masks may add large finite numbers to all scores of a query: -1e9 + log(3) is -1e9 in float32, so a logsumexp would
/// no longer tell three keys from five. Scores, and the logsumexp, of a query are therefore taken less its shift: the
/// greatest number that the mask adds to a score that it sees, if that is finite and beyond 16 (else 0).
///
/// Returns that greatest number, of the keys of a block (`mask` as in `attend`, or undefined; a mask that broadcasts
/// over keys stands at key 0): [.., .., rows or 1, 1] in the sum type, undefined without numbers to add. A rank with
/// a mask cut along keys takes the greatest of all blocks.
at::Tensor attention_peaks(bool is_causal, AttentionPlace place, const at::Tensor& query, const at::Tensor& mask);
/// The shifts; undefined where all are 0.
at::Tensor attention_shift(const at::Tensor& peaks);

/// Attention of a block of queries to a block of keys, merged into `sums` (of the same queries). Plain CPU tensors, no
/// autograd:
///     query [batch, heads, rows, head_dim], key [batch, heads / n, keys, head_dim], value [batch, heads / n, keys,
///     value_dim]
///     mask  undefined, or 4 dims that broadcast to [batch, heads, rows, keys]: bool (true: seen) or added to the
///           scores
///     shift undefined, or 4 dims that broadcast to [batch, heads, rows, 1], see above
/// LibTorch's flash kernel, so no scores are held; with dropout or a shift they are, some rows at a time. Keys that no
/// query of the block may see are not looked at.
void attend(const AttentionCall& call, AttentionPlace place, const at::Tensor& query, const at::Tensor& key,
            const at::Tensor& value, const at::Tensor& mask, const at::Tensor& shift, AttentionSums& sums);

/// Gradients of a block, in the sum type, added to what is there. `mask` may be undefined: not required.
struct AttentionGradients {
  at::Tensor query, key, value, mask;
};

/// Adds what this block gives to the gradients of its tensors. `output` and `logsumexp` are those of the whole
/// attention:
/// exp(score - logsumexp) is then the weight of a key among all keys, so blocks need not know of one another.
/// Source: T. Dao et al., FlashAttention, 2022, section 3.
void attend_backward(const AttentionCall& call, AttentionPlace place, const at::Tensor& grad_output,
                     const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask,
                     const at::Tensor& shift, const at::Tensor& output, const at::Tensor& logsumexp,
                     const AttentionGradients& gradients);

}  // namespace moonhalo
