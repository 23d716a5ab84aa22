// SPDX-License-Identifier: Apache-2.0
// Losses with every reduction, weights and targets, however they are held: S24.
#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "tests/support/sweep.h"

namespace moonhalo::testing::test_loss_tables {
namespace {

using at::Tensor;
using Dims = std::vector<int64_t>;

Tensor table(std::vector<int64_t> values, int64_t rows) { return at::tensor(values, at::kLong).view({rows, -1}); }

const Tensor m = make_tensor({5, 7}, 1), n = make_tensor({5, 7}, 2), logits = make_tensor({5, 4}, 3),
             field = make_tensor({2, 4, 5, 3}, 4);
const Tensor labels = make_tensor({5}, 5, at::kLong).abs().remainder(4),
             field_labels = make_tensor({2, 5, 3}, 6, at::kLong).abs().remainder(4);
const Tensor weight4 = make_tensor({4}, 7).abs() + 0.1, weight7 = make_tensor({7}, 8).abs() + 0.1;
const Tensor coin = make_tensor({5, 7}, 9, at::kBool), signs = coin.to(at::kDouble) * 2 - 1;
const Tensor several = table({3, 0, -1, 1, 1, -1, 0, 0, 0, 1, 2, 3, -1, 0, 1, 2, 2, 2, -1, 0}, 5);
const Tensor words = table({1, 2, 3, 2, 2, 1, 4, 1, 0, 3, 0, 0}, 4), long_inputs = table({9, 8, 9, 7}, 4).flatten(),
             long_words = table({3, 3, 2, 1}, 4).flatten();
const std::pair<const char*, int64_t> kReductions[] = {
    {"none", at::Reduction::None}, {"mean", at::Reduction::Mean}, {"sum", at::Reduction::Sum}};

TEST(SweepReduceLosses, S24_WeightsAndTargets) {
  std::vector<Row> rows;
  for (const auto& [text, r] : kReductions) {
    const std::string end = std::string("_") + text;
    rows.push_back(row("bce_weight" + end, {m, coin, weight7}, [r = r](X x, X y, X w) {
      return at::binary_cross_entropy(x.sigmoid(), y.to(at::kDouble), w.detach(), r);
    }));
    rows.push_back(row("bce_pos_weight" + end, {m, coin, weight7}, [r = r](X x, X y, X w) {
      return at::binary_cross_entropy_with_logits(x, y.to(at::kDouble), w.detach(), w.detach() + 1, r);
    }));
    rows.push_back(row("kl_log" + end, {m, n}, [r = r](X x, X y) { return at::kl_div(x, y, r, true); }));
    rows.push_back(row("poisson_full" + end, {m, n},
                       [r = r](X x, X y) { return at::poisson_nll_loss(x.abs(), y.abs() * 3, false, true, 1e-8, r); }));
    rows.push_back(row("gaussian_nll" + end, {m, n, n * n + 0.3}, [r = r](X x, X y, X v) {
      const Tensor each = 0.5 * (v.clamp_min(1e-6).log() + (x - y).square() / v.clamp_min(1e-6));
      return r == at::Reduction::None ? each : r == at::Reduction::Mean ? each.mean() : each.sum();
    }));
    rows.push_back(row("margin_ranking" + end, {m, n, signs},
                       [r = r](X x, X y, X s) { return at::margin_ranking_loss(x, y, s.detach(), 0.2, r); }));
    rows.push_back(row("nll_weight" + end, {logits, labels, weight4},
                       [r = r](X x, X y, X w) { return at::nll_loss(x.log_softmax(1), y, w.detach(), r, 1); }));
    rows.push_back(row("nll_one" + end, {make_tensor({4}, 12)}, [r = r](X x) {
      return at::nll_loss_nd(x.log_softmax(0), at::scalar_tensor(2, at::kLong), {}, r);
    }));
    rows.push_back(row("nll2d" + end, {field, field_labels, weight4},
                       [r = r](X x, X y, X w) { return at::nll_loss_nd(x.log_softmax(1), y, w.detach(), r, 2); }));
    rows.push_back(row("cross_entropy_smooth" + end, {field, field_labels, weight4},
                       [r = r](X x, X y, X w) { return at::cross_entropy_loss(x, y, w.detach(), r, 3, 0.2); }));
    rows.push_back(row("cross_entropy_soft" + end, {field, make_tensor({2, 4, 5, 3}, 13).softmax(1), weight4},
                       [r = r](X x, X y, X w) { return at::cross_entropy_loss(x, y, w.detach(), r, -100, 0.1); }));
    rows.push_back(row("multi_margin_weight" + end, {logits, labels, weight4},
                       [r = r](X x, X y, X w) { return at::multi_margin_loss(x, y, 2, 0.7, w.detach(), r); }));
    rows.push_back(row("multilabel_margin" + end, {logits, several},
                       [r = r](X x, X y) { return at::multilabel_margin_loss(x, y, r); }));
    rows.push_back(row("multilabel_soft" + end, {m, coin}, [r = r](X x, X y) {
      const Tensor t = y.to(at::kDouble);
      const Tensor each = -(t * at::log_sigmoid(x) + (1 - t) * at::log_sigmoid(-x)).mean(-1);
      return r == at::Reduction::None ? each : r == at::Reduction::Mean ? each.mean() : each.sum();
    }));
    rows.push_back(row("triplet_swap" + end, {m, n, m + n},
                       [r = r](X x, X y, X z) { return at::triplet_margin_loss(x, y, z, 1.5, 1, 1e-6, true, r); }));
    // _ctc_loss and _ctc_loss_backward.
    rows.push_back(row("ctc" + end, {make_tensor({9, 4, 5}, 14), words}, [r = r](X x, X y) {
      return at::ctc_loss(x.log_softmax(2), y, Dims{9, 8, 9, 7}, Dims{3, 3, 2, 1}, 0, r);
    }));
    rows.push_back(row("ctc_tensor" + end, {make_tensor({9, 4, 5}, 14), words, long_inputs, long_words},
                       [r = r](X x, X y, X a, X b) { return at::ctc_loss(x.log_softmax(2), y, a, b, 0, r, true); }));
    rows.push_back(row("cosine_embedding_all" + end, {m, n, labels},
                       [r = r](X x, X y, X z) { return at::cosine_embedding_loss(x, y, z.gt(1) * 2 - 1, 0.1, r); }));
  }
  sweep(rows);
}

TEST(SweepReduceLosses, S24_OneHotTargets) {
  sweep({
      row("one_hot", {labels, field_labels},
          [](X x, X y) {
            return List{at::one_hot(x, 5), at::one_hot(y, 4)};
          }),
      row("one_hot_auto", {labels}, [](X x) { return at::one_hot(x); }),
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_loss_tables
