// SPDX-License-Identifier: Apache-2.0
// Calls with nothing to compute, factors of another type, lazy zeros, blocks in another order: what one rank alone
// could get wrong.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "tests/support/placement_cases.h"
#include "tests/support/placements.h"

namespace moonhalo::testing::test_degenerate_calls {
namespace {

void expect_right_on_all_ways(const std::string& name, const List& tensors, const Program& program, int derivatives) {
  Draw draw(name);
  for (const Way& way : draw_ways(draw, tensors)) {
    // Second derivatives divide by the square of what the first divide by: a digit less than the usual 1e-10.
    const Verdict verdict =
        judge(way, program, {.tolerance = 1e-9, .backward = derivatives > 0, .double_backward = derivatives > 1});
    EXPECT_EQ(verdict.wrong + verdict.refusal, "") << name << " on " << way.to_string();
  }
}

TEST(DegenerateCalls, DistancesOfNoRows) {
  for (const std::vector<int64_t>& first : {std::vector<int64_t>{0, 4, 5}, {2, 0, 5}, {2, 4, 5}, {0, 5}}) {
    for (const std::vector<int64_t>& second : {std::vector<int64_t>{3, 5}, {0, 5}}) {
      const List tensors = {make_tensor(first, 1), make_tensor(second, 2)};
      expect_right_on_all_ways(
          "cdist" + shape_string(first) + shape_string(second), tensors,
          [](const List& t) { return List{at::cdist(t[0], t[1])}; }, 1);
    }
  }
}

// A rank without matrices would refuse the factor that the others cut the fraction off.
TEST(DegenerateCalls, FractionsBesideIntegers) {
  const auto number = [](at::IntArrayRef shape, int64_t seed) { return make_tensor(shape, seed, at::kLong); };
  for (const double factor : {0.5, 2.0, -1.7}) {
    const std::string name = std::to_string(factor);
    expect_right_on_all_ways(
        "addbmm" + name, {number({3, 4}, 1), number({3, 3, 2}, 2), number({3, 2, 4}, 3)},
        [=](const List& t) { return List{at::addbmm(t[0], t[1], t[2], factor)}; }, 0);
    expect_right_on_all_ways(
        "addmm" + name, {number({3, 4}, 1), number({3, 2}, 2), number({2, 4}, 3)},
        [=](const List& t) { return List{at::addmm(t[0], t[1], t[2], factor, factor)}; }, 0);
    expect_right_on_all_ways(
        "baddbmm" + name, {number({2, 3, 4}, 1), number({2, 3, 2}, 2), number({2, 2, 4}, 3)},
        [=](const List& t) { return List{at::baddbmm(t[0], t[1], t[2], factor)}; }, 0);
    expect_right_on_all_ways(
        "addmv" + name, {number({3}, 1), number({3, 2}, 2), number({2}, 3)},
        [=](const List& t) { return List{at::addmv(t[0], t[1], t[2], 1, factor)}; }, 0);
  }
}

TEST(DegenerateCalls, LogarithmsOfComplexSums) {
  expect_right_on_all_ways(
      "logsumexp", {make_tensor({5, 4}, 1, at::kComplexDouble)},
      [](const List& t) {
        return List{at::logsumexp(t[0], {0}), at::logsumexp(t[0], at::IntArrayRef({0, 1}), true),
                    at::logsumexp(t[0] * 300, {1})};
      },
      2);
}

// Their derivatives are zeros that LibTorch does not write into memory.
TEST(DegenerateCalls, DerivativesThatAreZero) {
  const auto each = [](const std::string& name, const Program& program) {
    expect_right_on_all_ways(name, {make_tensor({6, 4}, 1)}, program, 2);
  };
  each("sgn", [](const List& t) { return List{t[0] * t[0].sgn(), (t[0] * t[0].sgn()).sum()}; });
  each("abs", [](const List& t) { return List{t[0].abs().pow(3), t[0].abs().pow(3).sum()}; });
  each("softsign", [](const List& t) { return List{t[0] / (1 + t[0].abs())}; });
  for (const double p : {0., 0.5, 1., 1.5, 2., 3., double{INFINITY}}) {
    each("norm" + std::to_string(p), [=](const List& t) {
      return List{at::norm(t[0], p), at::norm(t[0], p, 0), at::norm(t[0], p, 1, true), at::linalg_vector_norm(t[0], p)};
    });
    if (p >= 1 && !std::isinf(p))
      each("renorm" + std::to_string(p), [=](const List& t) {
        return List{at::renorm(t[0], p, 0, 0.5), at::renorm(t[0], p, 1, 0.5)};
      });
  }
  each("steps", [](const List& t) {
    return List{
        t[0] * t[0].sign(), t[0] * t[0].floor(),       t[0] * t[0].frac(),         t[0] * t[0].clamp(-0.5, 0.5).pow(2),
        t[0].relu().pow(2), at::hardtanh(t[0]).pow(2), at::hardshrink(t[0]).pow(2)};
  });
  expect_right_on_all_ways(
      "complex", {make_tensor({6, 4}, 1, at::kComplexDouble)},
      [](const List& t) {
        return List{t[0] * t[0].sgn(), t[0].abs().pow(3), at::norm(t[0], 1.5), at::real(t[0].conj() * t[0])};
      },
      2);
  expect_right_on_all_ways(
      "svd", {make_tensor({4, 3, 2}, 1)},
      [](const List& t) {
        const auto [u, s, v] = at::linalg_svd(t[0], false);
        return List{u.abs(), s, v.abs()};
      },
      2);
}

// The same value, whose blocks are in memory from the last dim to the first, or with gaps. The whole still counts as
// row-major: so do results of kernels that LibTorch says nothing of.
enum class Lying { kReversed, kApart };
at::Tensor lying(const at::Tensor& x, Lying how) {
  const at::Tensor y = x * 1;
  ShardTensorImpl* const impl = is_shard_tensor(y) ? shard_impl(y) : nullptr;
  if (impl == nullptr) return y;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor block = impl->local();
  at::Tensor other;
  if (how == Lying::kReversed) {
    std::vector<int64_t> order;
    for (int64_t d = block.dim(); d-- > 0;) order.push_back(d);
    other = block.permute(order).clone(at::MemoryFormat::Contiguous).permute(order);
  } else {
    std::vector<int64_t> wider = block.sizes().vec();
    for (int64_t& size : wider) ++size;
    other = at::zeros(wider, block.options());
    for (int64_t d = 0; d < block.dim(); ++d) other = other.narrow(d, 0, block.size(d));
    other.copy_(block);
  }
  impl->replace(other, impl->spec());
  return y;
}

at::Tensor on_device_of(const at::Tensor& x, const at::Tensor& plain) { return plain.to(x.device()); }

// A factor or a target beside `x`.
at::Tensor beside(const at::Tensor& x, at::IntArrayRef shape) { return on_device_of(x, make_tensor(shape, 9)); }

void expect_right_in_any_memory(const char* name, const at::Tensor& tensor,
                                const std::function<List(const at::Tensor&)>& run) {
  for (const Lying how : {Lying::kReversed, Lying::kApart}) {
    expect_right_on_all_ways(
        name, {tensor}, [&](const List& t) { return run(lying(t[0], how)); }, 1);
  }
}

const at::Tensor kImage = make_tensor({2, 4, 6, 5}, 1), kRows = make_tensor({7, 3}, 3),
                 kMatrices = make_tensor({3, 4, 4}, 2) + 3 * at::eye(4, at::kDouble),
                 kVolume = make_tensor({2, 3, 4, 5, 6}, 4);

TEST(DegenerateCalls, NormsAndWindowsOfBlocksThatLieOtherwise) {
  expect_right_in_any_memory("layer_norm", kImage, [](const at::Tensor& x) {
    return List{at::layer_norm(x, {6, 5}), at::layer_norm(x, {5})};
  });
  expect_right_in_any_memory("group_norm", kImage,
                             [](const at::Tensor& x) { return List{at::group_norm(x, 2, beside(x, {4}), {})}; });
  expect_right_in_any_memory("batch_norm", kImage, [](const at::Tensor& x) {
    return List{at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false)};
  });
  expect_right_in_any_memory("conv2d", kImage, [](const at::Tensor& x) {
    return List{at::conv2d(x, beside(x, {3, 4, 3, 3}), {}, 1, 1)};
  });
  expect_right_in_any_memory("max_pool", kImage, [](const at::Tensor& x) {
    return List{at::max_pool2d(x, {2, 2}), std::get<0>(at::adaptive_max_pool2d(x, {3, 4}))};
  });
  expect_right_in_any_memory("max_pool3d", kVolume, [](const at::Tensor& x) {
    return List{at::max_pool3d(x, {2, 2, 2}), std::get<0>(at::adaptive_max_pool3d(x, {3, 2, 4}))};
  });
  expect_right_in_any_memory("avg_pool", kImage, [](const at::Tensor& x) {
    return List{at::avg_pool2d(x, {2, 3}), at::adaptive_avg_pool2d(x, {3, 4})};
  });
  expect_right_in_any_memory("fractional", kImage, [](const at::Tensor& x) {
    const auto [y, i] = at::fractional_max_pool2d(x, {2, 2}, {4, 3}, beside(x, {2, 4, 2}).abs());
    return List{y * y, at::max_unpool2d(y, i, {6, 5})};
  });
  expect_right_in_any_memory("upsample", kImage, [](const at::Tensor& x) {
    return List{at::upsample_nearest2d(x, {9, 8}), at::upsample_bilinear2d(x, {9, 8}, false),
                at::upsample_bicubic2d(x, {4, 8}, true)};
  });
  expect_right_in_any_memory("grid_sample", kImage, [](const at::Tensor& x) {
    return List{at::grid_sampler(x, beside(x, {2, 3, 4, 2}), 0, 0, false)};
  });
  expect_right_in_any_memory("volumes", kVolume, [](const at::Tensor& x) {
    return List{at::conv3d(x, beside(x, {2, 3, 3, 3, 3}), {}, 1, 1),
                at::conv_transpose3d(x, beside(x, {3, 2, 2, 2, 2}), {}, 2),
                at::upsample_trilinear3d(x, {6, 4, 9}, false), at::avg_pool3d(x, {2, 2, 2}),
                at::replication_pad3d(x, {1, 1, 0, 2, 1, 0})};
  });
  expect_right_in_any_memory("lines", make_tensor({3, 4, 9}, 7), [](const at::Tensor& x) {
    return List{
        at::conv1d(x, beside(x, {2, 4, 3}), {}, 2, 1), at::upsample_linear1d(x, {13}, false), at::max_pool1d(x, 2),
        at::ctc_loss(x.log_softmax(2).transpose(0, 1), beside(x, {3, 2}).mul(8).abs().floor().add(1).to(at::kLong),
                     at::IntArrayRef({4, 4, 4}), at::IntArrayRef({2, 1, 2}), 0, 1, true)};
  });
}

TEST(DegenerateCalls, PlacesScansAndReductionsOfBlocksThatLieOtherwise) {
  expect_right_in_any_memory("places", kImage, [](const at::Tensor& x) {
    return List{at::pixel_shuffle(x, 2), at::im2col(x, {2, 2}, {1, 1}, {0, 0}, {1, 1}),
                at::reflection_pad2d(x, {1, 1, 2, 0}), x.roll(2, 2), at::channel_shuffle(x, 2)};
  });
  expect_right_in_any_memory("views", kImage, [](const at::Tensor& x) {
    return List{x.view({8, 30}), x.flatten(1, 2), x.view({2, 2, 2, 30}).transpose(0, 1), x.unfold(2, 3, 2).pow(2),
                x.tril()};
  });
  expect_right_in_any_memory("scans", kImage, [](const at::Tensor& x) {
    return List{x.cumsum(2), x.cumprod(3), std::get<0>(x.cummax(1)), std::get<0>(x.sort(2)), x.logcumsumexp(1)};
  });
  expect_right_in_any_memory("reductions", kImage, [](const at::Tensor& x) {
    return List{x.softmax(1), x.log_softmax(2), std::get<0>(x.median(2)), x.prod(3),
                x.amax(1),    x.logsumexp(2),   x.quantile(0.3, 2)};
  });
  expect_right_in_any_memory("order", kImage, [](const at::Tensor& x) {
    return List{std::get<0>(x.kthvalue(2, 1)),
                std::get<0>(x.mode(2)),
                std::get<0>(x.topk(2, 3)),
                at::renorm(x, 2, 1, 1.0),
                at::searchsorted(std::get<0>(x.detach().sort(3)), x.detach()),
                x.diff(1, 2),
                x.var(1),
                x.norm(3, 2)};
  });
  expect_right_in_any_memory("embedding", kRows, [](const at::Tensor& x) {
    return List{at::embedding(x, on_device_of(x, at::tensor({3, 0, 6}, at::kLong))),
                x.index({on_device_of(x, at::tensor({3, 0, 6}, at::kLong))}),
                x.take(on_device_of(x, at::tensor({3, 0, 20}, at::kLong)))};
  });
  expect_right_in_any_memory("fft", kImage, [](const at::Tensor& x) {
    return List{at::real(at::fft_fft2(x)), at::imag(at::fft_rfft(x, {}, 2)).pow(2)};
  });
  expect_right_in_any_memory("complex", make_tensor({4, 6, 2}, 6), [](const at::Tensor& x) {
    return List{at::view_as_real(at::view_as_complex(x) * at::view_as_complex(x)), at::real(at::view_as_complex(x))};
  });
}

TEST(DegenerateCalls, ProductsAndMatricesOfBlocksThatLieOtherwise) {
  expect_right_in_any_memory("products", kMatrices, [](const at::Tensor& x) {
    return List{x.bmm(x), x.matmul(beside(x, {4, 2})), at::einsum("bij,bkj->ik", {x, x})};
  });
  expect_right_in_any_memory("attention", kImage, [](const at::Tensor& x) {
    return List{at::scaled_dot_product_attention(x, x, x), at::scaled_dot_product_attention(x, x * 2, x + 1)};
  });
  expect_right_in_any_memory("distances", kRows, [](const at::Tensor& x) {
    return List{at::pdist(x), at::cdist(x, x * 2 + 1)};
  });
  expect_right_in_any_memory("linalg", kMatrices, [](const at::Tensor& x) {
    return List{at::linalg_det(x),
                at::linalg_inv(x),
                at::linalg_solve(x, beside(x, {4, 2})),
                std::get<1>(at::linalg_slogdet(x)),
                at::linalg_matrix_exp(x * 0.1),
                at::linalg_cholesky(x.matmul(x.mT())),
                at::linalg_svdvals(x)};
  });
  expect_right_in_any_memory("factors", make_tensor({4, 5, 3}, 10), [](const at::Tensor& x) {
    return List{at::_trilinear(x, x, x + 1, {}, {}, {}, {2}, 0), at::_weight_norm(x, beside(x, {4, 1, 1}).abs() + 1, 0),
                at::bilinear(x, x, beside(x, {2, 3, 3}), {}), at::glu(x.narrow(1, 0, 4), 1)};
  });
}

TEST(DegenerateCalls, LossesOfBlocksThatLieOtherwise) {
  expect_right_in_any_memory("nll_loss2d", kImage, [](const at::Tensor& x) {
    return List{at::nll_loss2d(x, beside(x, {2, 6, 5}).mul(4).abs().floor().to(at::kLong))};
  });
  expect_right_in_any_memory("losses", make_tensor({5, 4}, 8), [](const at::Tensor& x) {
    const at::Tensor target = beside(x, {5}).mul(4).abs().floor().to(at::kLong);
    return List{at::nll_loss(x, target),
                at::cross_entropy_loss(x, target),
                at::multi_margin_loss(x, target),
                at::multilabel_margin_loss(x, beside(x, {5, 4}).mul(4).floor().clamp_min(-1).to(at::kLong)),
                at::kl_div(x, beside(x, {5, 4})),
                at::binary_cross_entropy_with_logits(x, beside(x, {5, 4}).abs())};
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_degenerate_calls
