// SPDX-License-Identifier: Apache-2.0
// The derivative of neighbourhood attention's derivative, on keys and values gathered by window.
#include "moonhalo/ops/neighborhood/double_backward.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace moonhalo {
namespace {

using neighborhood::Axis;

// Elements that are gathered at a time of keys, values and their cotangents each.
constexpr int64_t kGathered = int64_t{1} << 21;

// [queries, keys] of the block, flattened over the dims: the place of each key of a query's window among the block's
// keys, and whether it is one (causal windows are short at the start; what is missing there has the place of the
// window's first key, since zero times a NaN that the query does not see would be NaN).
struct Windows {
  at::Tensor place, seen;
};

Windows windows_of(const NeighborhoodCall& call) {
  at::Tensor place = at::zeros({1, 1}, at::kLong), seen = at::ones({1, 1}, at::kBool);
  for (const Axis& axis : call.axes) {
    at::Tensor along = at::zeros({axis.queries, axis.window}, at::kLong),
               held = at::zeros({axis.queries, axis.window}, at::kBool);
    auto key_of = along.accessor<int64_t, 2>();
    auto is_key = held.accessor<bool, 2>();
    for (int64_t q = 0; q < axis.queries; ++q) {
      const int64_t row = axis.query_begin + q, group = row % axis.dilation;
      const int64_t length = neighborhood::rows_before(axis, group, axis.extent);
      const auto window = neighborhood::window_of(axis, length, row / axis.dilation);
      for (int64_t k = 0; k < axis.window; ++k) {
        is_key[q][k] = k < window.end - window.begin;
        key_of[q][k] = (window.begin + (is_key[q][k] ? k : 0)) * axis.dilation + group - axis.key_begin;
      }
    }
    const int64_t queries = place.size(0), keys = place.size(1);
    place = (place.view({queries, 1, keys, 1}) * axis.keys + along.view({1, axis.queries, 1, axis.window}))
                .reshape({queries * axis.queries, keys * axis.window});
    seen = seen.view({queries, 1, keys, 1})
               .logical_and(held.view({1, axis.queries, 1, axis.window}))
               .reshape({queries * axis.queries, keys * axis.window});
  }
  return {place, seen};
}

// With s = scale q.k, P = softmax(s), dP = grad.v and T = P (dP - sum(P dP) + grad_logsumexp), the first derivatives
// are scale T k, scale T q and P grad. Of their product with cotangents a, b, c, with A = scale (a.k + q.b) and m =
// sum(P A):
// by dP it is U = P (A - m), by grad_logsumexp m, by A it is T, and by s it is S = P (R - sum(P R)),
// R = (dP - sum(P dP) + grad_logsumexp) A - m dP + grad.c.
class Second {
 public:
  Second(const NeighborhoodSecond& given, const NeighborhoodCall& call)
      : spatial_(call.spatial), scale_(call.scale), windows_(windows_of(call)) {
    const auto type = neighborhood_sum_type(given.query.scalar_type());
    const auto tokens = [&](const at::Tensor& t, int64_t features) {
      const at::Tensor flat = features > 0 ? t : t.unsqueeze(-1);
      return flat.flatten(1, spatial_).transpose(1, 2).to(type).contiguous();
    };
    query_ = tokens(given.query, 1);
    key_ = tokens(given.key, 1);
    value_ = tokens(given.value, 1);
    a_ = tokens(given.cotangent_query, 1);
    b_ = tokens(given.cotangent_key, 1);
    c_ = tokens(given.cotangent_value, 1);
    grad_ = tokens(given.grad_output, 1);
    grad_sum_ = tokens(given.grad_logsumexp, 0);
    by_query_ = at::zeros_like(query_);
    by_grad_ = at::zeros_like(grad_);
    by_sum_ = at::zeros_like(grad_sum_);
    by_key_ = at::zeros_like(key_);
    by_value_ = at::zeros_like(value_);
    windows_.place = windows_.place.to(query_.device());
    windows_.seen = windows_.seen.to(query_.device());
  }

  void run() {
    const int64_t queries = windows_.place.size(0), keys = windows_.place.size(1);
    const int64_t row =
        std::max<int64_t>(1, query_.size(0) * query_.size(1) * keys * std::max(key_.size(3), value_.size(3)));
    const int64_t step = std::max<int64_t>(1, kGathered / row);
    for (int64_t first = 0; first < queries; first += step) add(first, std::min(step, queries - first));
  }

  std::array<at::Tensor, 5> results(const NeighborhoodSecond& given) const {
    const auto shaped = [&](const at::Tensor& tokens, const at::Tensor& like) {
      return tokens.transpose(1, 2).reshape(like.sizes()).to(like.scalar_type()).contiguous();
    };
    return {shaped(by_grad_, given.grad_output), shaped(by_sum_, given.grad_logsumexp), shaped(by_query_, given.query),
            shaped(by_key_, given.key), shaped(by_value_, given.value)};
  }

 private:
  void add(int64_t first, int64_t count) {
    const at::Tensor place = windows_.place.narrow(0, first, count), flat = place.reshape({place.numel()});
    const at::Tensor hidden = windows_.seen.narrow(0, first, count).logical_not();
    const auto gathered = [&](const at::Tensor& rows) {
      return rows.index_select(2, flat).view({rows.size(0), rows.size(1), count, place.size(1), rows.size(3)});
    };
    const auto mine = [&](const at::Tensor& rows) { return rows.narrow(2, first, count); };
    const auto dot = [](const at::Tensor& row, const at::Tensor& rows) {
      return rows.matmul(row.unsqueeze(-1)).squeeze(-1);
    };
    const auto sum = [](const at::Tensor& weights, const at::Tensor& rows) {
      return weights.unsqueeze(-2).matmul(rows).squeeze(-2);
    };
    const auto scatter = [&](at::Tensor& to, const at::Tensor& weights, const at::Tensor& rows) {
      const at::Tensor products = weights.unsqueeze(-1) * rows.unsqueeze(-2);
      to.index_add_(2, flat, products.flatten(2, 3));
    };
    const at::Tensor k = gathered(key_), v = gathered(value_), b = gathered(b_), c = gathered(c_);
    const at::Tensor q = mine(query_), a = mine(a_), grad = mine(grad_);

    const at::Tensor p = (dot(q, k) * scale_).masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
    const at::Tensor dp = dot(grad, v);
    const at::Tensor inner = dp - (p * dp).sum(-1, true) + mine(grad_sum_);
    const at::Tensor t = p * inner, product = (dot(a, k) + dot(q, b)) * scale_;
    const at::Tensor m = (p * product).sum(-1, true);
    const at::Tensor r = inner * product - m * dp + dot(grad, c);
    const at::Tensor s = p * (r - (p * r).sum(-1, true)) * scale_, u = p * (product - m), scaled = t * scale_;

    mine(by_grad_).copy_(sum(u, v) + sum(p, c));
    mine(by_sum_).copy_(m);
    mine(by_query_).copy_(sum(s, k) + sum(scaled, b));
    scatter(by_key_, s, q);
    scatter(by_key_, scaled, a);
    scatter(by_value_, u, grad);
  }

  int64_t spatial_;
  double scale_;
  Windows windows_;
  at::Tensor query_, key_, value_, a_, b_, c_, grad_,
      grad_sum_;  // [batch, heads, tokens, features]
  at::Tensor by_query_, by_key_, by_value_, by_grad_, by_sum_;
};

}  // namespace

std::array<at::Tensor, 5> neighborhood_second(const NeighborhoodSecond& given, const NeighborhoodCall& call) {
  const auto zeros = [](const at::Tensor& t) { return at::zeros_like(t, {}, at::MemoryFormat::Contiguous); };
  if (given.query.numel() == 0) {
    return {zeros(given.grad_output), zeros(given.grad_logsumexp), zeros(given.query), zeros(given.key),
            zeros(given.value)};
  }
  Second second(given, call);
  second.run();
  return second.results(given);
}

}  // namespace moonhalo
