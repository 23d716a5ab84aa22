// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/attention/block_kernel.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/random/random.h"

namespace moonhalo {
namespace {

// Scores held at a time where they are held at all.
constexpr int64_t kScores = int64_t{1} << 22;

// Rows and keys of a block that all see each other, or (diagonal) row i keys 0 to i.
struct Piece {
  int64_t row, rows, key, keys;
  bool diagonal;
};

std::vector<Piece> pieces_of(bool causal, AttentionPlace place, int64_t rows, int64_t keys) {
  std::vector<Piece> pieces;
  const auto add = [&](int64_t row, int64_t key, int64_t end, bool diagonal) {
    if (row < rows && key < end) pieces.push_back({row, rows - row, key, end - key, diagonal});
  };
  if (!causal) {
    add(0, 0, keys, false);
    return pieces;
  }
  const int64_t first = std::max(place.query, place.key);  // the first query that sees any key
  const int64_t row = first - place.query, before = std::min(first - place.key, keys);
  add(row, 0, before, false);
  add(row, before, std::min(keys, place.query + rows - place.key), true);
  return pieces;
}

at::Tensor part_of_mask(const at::Tensor& mask, const Piece& p) {
  if (!mask.defined()) return mask;
  at::Tensor part = mask;
  if (part.size(2) != 1) part = part.narrow(2, p.row, p.rows);
  if (part.size(3) != 1) part = part.narrow(3, p.key, p.keys);
  return part;
}

// Added to the scores. The kernel takes a mask of the queries' type, or of float32.
at::Tensor additive(const at::Tensor& mask, at::ScalarType type) {
  if (mask.scalar_type() == at::kBool) return at::zeros(mask.sizes(), type).masked_fill_(mask.logical_not(), kUnseen);
  return mask.scalar_type() == at::kFloat && type != at::kDouble ? mask : mask.to(type);
}

// Keys that queries from `row` on do not see, of a piece whose diagonal is that of both sequences' starts.
at::Tensor above_diagonal(int64_t row, int64_t rows, int64_t keys) {
  return at::ones({rows, keys}, at::kBool).triu(1 + row);
}

// Rows of what may broadcast over them.
at::Tensor rows_or_all(const at::Tensor& t, int64_t row, int64_t rows) {
  return t.size(2) == 1 ? t : t.narrow(2, row, rows);
}

// Below zero, the scale turns the kernel's diagonal of -inf into one of +inf. And it would add the shift to a
// logsumexp that has no space for both.
bool kernel_fits(const AttentionCall& call, const Piece& p, const at::Tensor& shift) {
  if (call.dropout_p > 0 || (p.diagonal && call.scale < 0)) return false;
  return !shift.defined() || rows_or_all(shift, p.row, p.rows).count_nonzero().item<int64_t>() == 0;
}

// The kernel has no mask beside the diagonal that could say which rows are unseen.
void join_diagonal(at::Tensor& mask, Piece& p) {
  if (!mask.defined() || !p.diagonal) return;
  mask = mask.masked_fill(above_diagonal(0, p.rows, p.keys), kUnseen);
  p.diagonal = false;
}

std::optional<at::Tensor> optional_of(const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

// The kernel needs as many features of keys as of values; zeros change no score and no sum.
at::Tensor widened(const at::Tensor& t, int64_t features) {
  return t.size(-1) == features ? t : at::constant_pad_nd(t, {0, features - t.size(-1)});
}

int64_t features_of(const at::Tensor& query, const at::Tensor& value) {
  return std::max<int64_t>({1, query.size(-1), value.size(-1)});
}

// [batch, heads / n, ...] to [batch, heads, ...], and the sum back.
at::Tensor for_all_heads(const at::Tensor& t, int64_t heads) {
  return t.size(1) == heads ? t : t.repeat_interleave(heads / t.size(1), 1);
}
at::Tensor over_groups(const at::Tensor& t, int64_t heads) {
  return t.size(1) == heads ? t : t.unflatten(1, {heads, t.size(1) / heads}).sum(2);
}

// Kernels that hold scores

// The factors of at::dropout: 1 / (1 - p) where a uniform number is below 1 - p.
at::Tensor noise_of(const AttentionCall& call, at::IntArrayRef shape, at::ScalarType type, int64_t query, int64_t key) {
  const at::Tensor noise = at::empty(shape, type);
  note_work("attention_dropout", 0, memory_bytes({noise}));
  if (is_fake(noise)) return noise;
  const int64_t lines = shape[0] * shape[1], rows = shape[2], keys = shape[3];
  const double kept = 1 - call.dropout_p, factor = kept > 0 ? 1 / kept : 0;
  const auto fill = [&]<typename Scalar>(Scalar* data) {
    parallel_for(0, lines * rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = (call.lines[i / rows] * call.queries + query + i % rows) * call.keys + key;
        for (int64_t k = 0; k < keys; ++k) {
          Draws draws(call.dropout_key, first + k);
          data[i * keys + k] = static_cast<Scalar>(draws.uniform() < kept ? factor : 0);
        }
      }
    });
  };
  if (type == at::kDouble) {
    fill(noise.mutable_data_ptr<double>());
  } else {
    fill(noise.mutable_data_ptr<float>());
  }
  return noise;
}

// Scores of some rows of a piece, in the sum type, with the mask and less the shift: rounded as if there were none.
at::Tensor scores_of(const AttentionCall& call, const Piece& p, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& mask, const at::Tensor& shift, int64_t row) {
  at::Tensor scores = query.matmul(key.transpose(-1, -2)).mul_(call.scale);
  if (mask.defined()) scores += rows_or_all(mask, row, query.size(2));
  if (shift.defined()) scores -= rows_or_all(shift, p.row + row, query.size(2));
  if (p.diagonal) scores.masked_fill_(above_diagonal(row, query.size(2), p.keys), kUnseen);
  return scores;
}

struct Dense {
  at::Tensor key, value, mask;  // of a piece, for all heads, in the sum type
  int64_t step;                 // rows at a time
};

Dense dense_of(const Piece& p, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const at::Tensor& mask) {
  const int64_t heads = query.size(1);
  const auto type = attention_sum_type(query.scalar_type());
  const at::Tensor part = part_of_mask(mask, p);
  const int64_t line = query.size(0) * heads * p.keys;
  return {for_all_heads(key.narrow(2, p.key, p.keys), heads).to(type),
          for_all_heads(value.narrow(2, p.key, p.keys), heads).to(type),
          part.defined() ? additive(part, type).to(type) : part,
          std::max<int64_t>(1, kScores / std::max<int64_t>(1, line))};
}

void attend_dense(const AttentionCall& call, AttentionPlace place, const Piece& p, const at::Tensor& query,
                  const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask, const at::Tensor& shift,
                  AttentionSums& sums) {
  const Dense d = dense_of(p, query, key, value, mask);
  for (int64_t row = 0; row < p.rows; row += d.step) {
    const int64_t rows = std::min(d.step, p.rows - row);
    at::Tensor weights =
        scores_of(call, p, query.narrow(2, p.row + row, rows).to(d.key.scalar_type()), d.key, d.mask, shift, row);
    const at::Tensor logsumexp = weights.logsumexp(-1);
    weights.sub_(logsumexp.masked_fill(logsumexp.eq(kUnseen), 0).unsqueeze(-1)).exp_();
    if (call.dropout_p > 0)
      weights.mul_(
          noise_of(call, weights.sizes(), weights.scalar_type(), place.query + p.row + row, place.key + p.key));
    sums.add(p.row + row, weights.matmul(d.value), logsumexp);
  }
}

void attend_dense_backward(const AttentionCall& call, AttentionPlace place, const Piece& p,
                           const at::Tensor& grad_output, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const at::Tensor& mask, const at::Tensor& shift,
                           const at::Tensor& output, const at::Tensor& logsumexp, const AttentionGradients& gradients) {
  const Dense d = dense_of(p, query, key, value, mask);
  const auto type = d.key.scalar_type();
  const int64_t key_heads = key.size(1);
  const at::Tensor grad_mask = part_of_mask(gradients.mask, p);
  for (int64_t row = 0; row < p.rows; row += d.step) {
    const int64_t rows = std::min(d.step, p.rows - row);
    const auto rows_of = [&](const at::Tensor& t) { return t.narrow(2, p.row + row, rows).to(type); };
    const at::Tensor q = rows_of(query), grad = rows_of(grad_output);
    at::Tensor weights = scores_of(call, p, q, d.key, d.mask, shift, row).sub_(rows_of(logsumexp).unsqueeze(-1)).exp_();
    at::Tensor by_weights = grad.matmul(d.value.transpose(-1, -2)), dropped = weights;
    if (call.dropout_p > 0) {
      const at::Tensor noise = noise_of(call, weights.sizes(), type, place.query + p.row + row, place.key + p.key);
      by_weights.mul_(noise);
      dropped = weights * noise;
    }
    gradients.value.narrow(2, p.key, p.keys) += over_groups(dropped.transpose(-1, -2).matmul(grad), key_heads);
    const at::Tensor by_scores = weights.mul_(by_weights.sub_((grad * rows_of(output)).sum(-1, /*keepdim=*/true)));
    gradients.query.narrow(2, p.row + row, rows) += by_scores.matmul(d.key).mul_(call.scale);
    gradients.key.narrow(2, p.key, p.keys) +=
        over_groups(by_scores.transpose(-1, -2).matmul(q), key_heads).mul_(call.scale);
    if (!grad_mask.defined()) continue;
    at::Tensor target = grad_mask.size(2) == 1 ? grad_mask : grad_mask.narrow(2, row, rows);
    target += by_scores.sum_to_size(target.sizes());
  }
}

}  // namespace

at::ScalarType attention_sum_type(at::ScalarType query) { return query == at::kDouble ? at::kDouble : at::kFloat; }

AttentionSums::AttentionSums(const at::Tensor& query, int64_t value_dim)
    : output(
          at::zeros({query.size(0), query.size(1), query.size(2), value_dim}, attention_sum_type(query.scalar_type()))),
      logsumexp(at::full({query.size(0), query.size(1), query.size(2)}, kUnseen, output.options())) {}

AttentionSums AttentionSums::rows(int64_t row, int64_t count) const {
  AttentionSums part;
  part.output = output.narrow(2, row, count);
  part.logsumexp = logsumexp.narrow(2, row, count);
  return part;
}

void AttentionSums::add(int64_t row, const at::Tensor& more, const at::Tensor& more_logsumexp) {
  const int64_t rows = more.size(2);
  at::Tensor sums = logsumexp.narrow(2, row, rows);
  const at::Tensor other = more_logsumexp.to(sums.scalar_type());
  const at::Tensor top = at::maximum(sums, other);
  // Both are exp(-inf) if nothing has been seen. The weights sum to 1 however the logarithms were rounded.
  const at::Tensor finite = top.masked_fill(top.eq(kUnseen), 0);
  const at::Tensor a = (sums - finite).exp_(), b = (other - finite).exp_(), all = a + b;
  const at::Tensor divisor = all.masked_fill(all.eq(0), 1);
  output.narrow(2, row, rows).mul_((a / divisor).unsqueeze(-1)).add_(more * (b / divisor).unsqueeze(-1));
  sums.copy_(finite + all.log());
}

at::Tensor attention_four_dims(const at::Tensor& t) {
  if (t.dim() == 4) return t;
  const auto sizes = t.sizes();
  const int64_t lead = t.dim() - 2, heads = lead > 0 ? sizes[lead - 1] : 1;
  const int64_t batch = lead > 0 ? c10::multiply_integers(sizes.slice(0, lead - 1)) : 1;
  return t.reshape({batch, heads, sizes[lead], sizes[lead + 1]});
}

at::Tensor attention_packed_rows(const at::Tensor& t) {
  const at::Tensor four = attention_four_dims(t);
  return four.stride(-1) == 1 ? four : four.contiguous();
}

at::Tensor attention_mask_four_dims(const at::Tensor& mask, const at::Tensor& query) {
  at::Tensor four = mask;
  while (four.dim() < query.dim()) four = four.unsqueeze(0);
  if (four.dim() > 4) {  // batch dims are merged
    std::vector<int64_t> shape = query.sizes().slice(0, query.dim() - 3).vec();
    shape.resize(query.dim(), -1);
    four = four.expand(shape);
  }
  return attention_four_dims(four);
}

at::Tensor attention_mask_gradient(const at::Tensor& gradient, const at::Tensor& mask, const at::Tensor& query) {
  if (query.dim() <= 4) return gradient.reshape(mask.sizes()).to(mask.scalar_type());
  std::vector<int64_t> shape = query.sizes().slice(0, query.dim() - 3).vec();
  shape.insert(shape.end(), {gradient.size(1), gradient.size(2), gradient.size(3)});
  return gradient.reshape(shape).sum_to_size(mask.sizes()).to(mask.scalar_type());
}

at::Tensor attention_peaks(bool is_causal, AttentionPlace place, const at::Tensor& query, const at::Tensor& mask) {
  if (!mask.defined() || mask.scalar_type() == at::kBool) return {};
  const at::Tensor numbers = mask.to(attention_sum_type(query.scalar_type()));
  const int64_t rows = query.size(2), keys = mask.size(3);
  std::vector<int64_t> shape = mask.sizes().vec();
  if (is_causal) shape[2] = rows;
  shape[3] = 1;
  if (numbers.numel() == 0) return at::full(shape, kUnseen, numbers.options());
  if (!is_causal) return numbers.amax(-1, /*keepdim=*/true);
  const at::Tensor last = (at::arange(rows, at::kLong) + (place.query - place.key)).view({1, 1, rows, 1});
  std::vector<int64_t> wide = shape;
  wide[3] = keys;
  return std::get<0>(numbers.cummax(-1))
      .expand(wide)
      .gather(-1, last.clamp(0, keys - 1).expand(shape))
      .masked_fill(last.lt(0), kUnseen);
}

at::Tensor attention_shift(const at::Tensor& peaks) {
  if (!peaks.defined()) return peaks;
  if (is_fake(peaks)) return {};  // as of masks that hide rows, or add little
  constexpr double kFar = 16;     // nearer, the logarithms lose no more than the sums
  const at::Tensor shift = peaks.masked_fill(peaks.isfinite().logical_and_(peaks.abs().gt(kFar)).logical_not_(), 0);
  return shift.count_nonzero().item<int64_t>() > 0 ? shift : at::Tensor();
}

void attend(const AttentionCall& call, AttentionPlace place, const at::Tensor& query, const at::Tensor& key,
            const at::Tensor& value, const at::Tensor& mask, const at::Tensor& shift, AttentionSums& sums) {
  if (query.size(0) * query.size(1) == 0) return;
  for (Piece p : pieces_of(call.is_causal, place, query.size(2), key.size(2))) {
    if (!kernel_fits(call, p, shift)) {
      attend_dense(call, place, p, query, key, value, mask, shift, sums);
      continue;
    }
    at::Tensor part = part_of_mask(mask, p);
    if (part.defined()) part = additive(part, query.scalar_type());
    join_diagonal(part, p);
    const int64_t features = features_of(query, value);
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        widened(query.narrow(2, p.row, p.rows), features), widened(key.narrow(2, p.key, p.keys), features),
        widened(value.narrow(2, p.key, p.keys), features), 0, p.diagonal, optional_of(part), call.scale);
    // A row that sees nothing has a logsumexp of 0 there.
    if (part.defined()) logsumexp = logsumexp.masked_fill(part.eq(kUnseen).all(-1), kUnseen);
    sums.add(p.row, output.narrow(-1, 0, value.size(-1)), logsumexp);
  }
}

void attend_backward(const AttentionCall& call, AttentionPlace place, const at::Tensor& grad_output,
                     const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& mask,
                     const at::Tensor& shift, const at::Tensor& output, const at::Tensor& logsumexp,
                     const AttentionGradients& gradients) {
  if (query.size(0) * query.size(1) == 0) return;
  // Scores of rows that see nothing are -inf: any finite number gives them no weight.
  const at::Tensor sums = logsumexp.masked_fill(logsumexp.eq(kUnseen), 0);
  for (Piece p : pieces_of(call.is_causal, place, query.size(2), key.size(2))) {
    if (!kernel_fits(call, p, shift) || gradients.mask.defined()) {
      attend_dense_backward(call, place, p, grad_output, query, key, value, mask, shift, output, sums, gradients);
      continue;
    }
    at::Tensor part = part_of_mask(mask, p);
    if (part.defined()) part = additive(part, query.scalar_type());
    join_diagonal(part, p);
    const int64_t features = features_of(query, value);
    const auto rows_of = [&](const at::Tensor& t) { return widened(t.narrow(2, p.row, p.rows), features); };
    const auto keys_of = [&](const at::Tensor& t) { return widened(t.narrow(2, p.key, p.keys), features); };
    const auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        rows_of(grad_output), rows_of(query), keys_of(key), keys_of(value), rows_of(output),
        sums.narrow(2, p.row, p.rows), 0, p.diagonal, optional_of(part), call.scale);
    gradients.query.narrow(2, p.row, p.rows) += grad_query.narrow(-1, 0, query.size(-1));
    gradients.key.narrow(2, p.key, p.keys) += grad_key.narrow(-1, 0, key.size(-1));
    gradients.value.narrow(2, p.key, p.keys) += grad_value.narrow(-1, 0, value.size(-1));
  }
}

}  // namespace moonhalo
