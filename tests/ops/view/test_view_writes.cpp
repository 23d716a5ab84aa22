// SPDX-License-Identifier: Apache-2.0
// Writing through views that had to be copied, and reading them after their originals were written: features S26, D08.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/placement_cases.h"

namespace moonhalo::testing::test_view_writes {
namespace {

using at::Tensor;

const std::vector<PlacementCase> kHeldByOneTwoThree = {
    {"one_rank", {1}, {shard(0)}},
    {"rows_5_4", {2}, {shard(0, {5, 4})}},
    {"replicated", {2}, {replicate()}},
    {"columns_1_5_1", {3}, {shard(1, {1, 5, 1})}},
    {"empty_block", {3}, {shard(0, {4, 0, 5})}},
};

// Views that had to be copied: a row of another rank, a cut that moved, a narrowed block with gaps. Under autograd, and
// whatever is written or read in between.
const std::vector<Case> kCopiesWritten{
    {"row",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.select(0, 3).mul_(2);
       y.select(1, -1).add_(x.select(1, 0)).mul_(x.select(1, 2));
       y.select(2, 1).sub_(3);
       return List{y * y};
     },
     kTwice},
    {"row_of_a_row",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       Tensor row = y.select(0, 2), cell = row.select(0, 5);
       cell.mul_(x.select(0, 0).select(0, 0));
       row.slice(0, 0, 3).exp_();
       return List{y * y, row * 2, cell};
     },
     kTwice},
    {"assigned",
     [](const Tensor& x) {
       using at::indexing::Slice;
       Tensor y = cubed(x);
       y.index_put_({4}, x.select(0, 1));
       y.index_put_({Slice(1, 3), 2}, 0.5);
       y.index_put_({Slice(), Slice(), -1}, make_tensor({9, 7}, 3));
       y.index_put_({0, 0, 0}, x.sum());
       return List{y * x};
     },
     kTwice},
    {"plain_into_transposed_row",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.transpose(0, 1).select(0, 1).copy_(make_tensor({9, 2}, 4));
       y.transpose(0, 2).select(2, 1).select(1, 3).fill_(2);
       return List{y * y};
     }},
    {"another_cut",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.select(0, 1).copy_(x.transpose(0, 1).select(1, 2) * 2);
       y.select(1, 4).copy_(x.flip({0, 2}).select(1, 1));
       return List{y * y};
     }},
    {"masked_row",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.select(0, 8).masked_fill_(x.detach().select(0, 0).gt(0), 0.5);
       y.view({63, 2}).masked_fill_(x.detach().view({63, 2}).lt(-0.5), -1);
       return List{y * y};
     }},
    {"moved_cut",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.view({63, 2}).mul_(x.reshape({63, 2}));
       y.view({9, 14}).select(1, 5).zero_();
       y.flatten().slice(0, 3, 120, 5).add_(1);
       return List{y * y};
     },
     kTwice},
    {"unflattened",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.unflatten(0, {3, 3}).select(0, 1).mul_(3);
       y.view({3, 3, 14}).transpose(0, 1).select(0, 2).copy_(x.slice(0, 0, 3).flatten(1));
       return List{y * y};
     },
     kTwice},
    {"gaps",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       Tensor middle = y.narrow(1, 1, 3), flat = middle.reshape({54});
       flat = flat * 1;
       middle.view({9, 6}).mul_(2);
       middle.select(0, 4).view({6}).sub_(1);
       return List{y * y, flat, middle * y.narrow(1, 0, 3)};
     },
     kForward},
    {"diagonal",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.diagonal(1).fill_(2);
       y.diagonal().select(1, 2).mul_(3);
       y.select(2, 0).diagonal(-1).copy_(x.select(2, 1).diagonal());
       return List{y * y};
     }},
    {"unbound_and_split",
     [](const Tensor& x) {
       const Tensor y = cubed(x).detach();
       y.unbind(0)[1].mul_(2);
       y.unbind(1)[6].copy_(x.detach().select(1, 0));
       y.split(4, 0)[1].view({8, 7}).add_(1);
       y.chunk(3, 1)[2].select(0, 0).zero_();
       return List{y * x};
     }},
    {"windows",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.unfold(0, 2, 2).select(3, 1).mul_(2);
       y.unfold(0, 3, 4).add_(x.detach().unfold(0, 3, 4));
       y.unfold(1, 2, 3).fill_(1);
       return List{y * y};
     },
     kForward},
    {"sums_of_rows",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.select(0, 5).add_(x.sum(0)).mul_(x.mean());
       y.select(1, 2).add_(at::matmul(x.select(0, 0).t(), x.select(0, 1)).sum());
       return List{y * y};
     }},
    {"rows_in_a_loop",
     [](const Tensor& x) {
       Tensor y = at::zeros_like(x), state = x.select(0, 0);
       for (int64_t i = 0; i < 9; ++i) {
         y.select(0, i).copy_(state);
         state = (y.select(0, i) - x.select(0, i)).tanh();
       }
       return List{y, state};
     },
     kTwice},
    {"base_rows_and_slices_read_after_each_other",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       const Tensor row = y.select(0, 3), again = y.select(0, 3), flat = y.view({63, 2}), part = y.narrow(0, 2, 3);
       row.mul_(2);
       const Tensor a = again + flat.slice(0, 21, 28);
       y.mul_(x);
       const Tensor b = row + again * 2 + part.select(0, 1);
       flat.add_(1);
       again.copy_(x.select(0, 0));
       return List{a, b, row * 1, part * 1, flat * y.view({63, 2}), y};
     },
     kTwice},
};

// Complex numbers of pairs: blocks begin at odd places of memory, hold no pair, or one of each pair.
const std::vector<Case> kComplexViews{
    {"rows_of_seven",
     [](const Tensor& x) {
       Tensor y = cubed(x).flatten(1).narrow(1, 0, 13).reshape({9 * 13}), z = y.narrow(0, 26, 52).view({26, 2});
       const Tensor c = at::view_as_complex(z);
       return List{c * c, at::view_as_real(c * 2)};
     }},
    {"written",
     [](const Tensor& x) {
       const Tensor y = cubed(x).detach().select(2, 0).clone(), rows = y.narrow(0, 2, 4).view({14, 2}),
                    c = at::view_as_complex(rows);
       c.mul_(c10::complex<double>(0, 2));
       const Tensor real = at::real(c), imaginary = at::imag(c);
       real.add_(1), imaginary.select(0, 3).zero_();
       rows.select(1, 1).neg_();
       return List{y * 1, c * 1, real * imaginary};
     },
     kForward},
    {"written_pairs",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       at::view_as_complex(y).mul_(at::view_as_complex(x));
       at::view_as_complex(y.narrow(0, 1, 5)).select(1, 2).copy_(at::view_as_complex(x).select(0, 3).select(0, 2));
       return List{y * y};
     }},
    {"of_bent_blocks",
     [](const Tensor& x) {
       const Tensor y = x.permute({2, 0, 1}).contiguous().permute({1, 2, 0});
       return List{at::view_as_complex(y.contiguous()) * 2, at::view_as_complex(at::cat({y, y}, 1))};
     }},
    {"another_type",
     [](const Tensor& x) {
       const Tensor y = cubed(x).detach(), c = y.view(at::kComplexDouble);
       c.mul_(c10::complex<double>(0, 2));
       y.select(0, 4).view(at::kComplexDouble).zero_();
       return List{y * 1, c * 1};
     },
     kForward},
    {"real_of_complex",
     [](const Tensor& x) {
       Tensor c = at::complex(x.select(2, 0), x.select(2, 1)) * 1;
       at::real(c).mul_(2);
       at::imag(c.narrow(1, 1, 3)).add_(x.narrow(1, 0, 3).select(2, 0));
       at::view_as_real(c.select(0, 2)).flatten().narrow(0, 3, 5).zero_();
       return List{c * c.conj(), at::real(c).t() * 1};
     }},
};

TEST(View, S26_D08_ComplexViewsOfBlocksAtAnyPlace) {
  check(kComplexViews, make_tensor({9, 7, 2}, 13));
  check(kComplexViews, make_tensor({9, 7, 2}, 13), {{"rows_1_8", {2}, {shard(0, {1, 8})}}});
  check(kComplexViews, make_tensor({9, 7, 2}, 13), kHeldByOneTwoThree);
  check_in_inference_mode(kComplexViews, make_tensor({9, 7, 2}, 13));
}

// Results of LibTorch's kernels may be in any order, which thin and empty blocks do not show: all ranks write
// through merged dims, or all refuse.
TEST(View, D08_MergedDimsOfResultsInAnyOrderAreWrittenOnEveryRankOrOnNone) {
  const auto last = [](const Tensor& x) { return x.unsqueeze(0).to(at::MemoryFormat::ChannelsLast); };
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> results[] = {
      {"row-major", [](const Tensor& x) { return x * 1; }},
      {"fft of rows", [](const Tensor& x) { return at::fft_fft(x, {}, 1); }},
      {"fft of columns", [](const Tensor& x) { return at::fft_fft(x, {}, 2); }},
      {"eigenvectors", [](const Tensor& x) { return std::get<1>(at::linalg_eig(x.narrow(1, 0, 2))); }},
      {"qr", [](const Tensor& x) { return std::get<0>(at::linalg_qr(x)); }},
      {"batch norm, channels last",
       [=](const Tensor& x) { return at::batch_norm(last(x), {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
      {"pooled, channels last",
       [=](const Tensor& x) {
         return at::adaptive_avg_pool2d(last(x), {7, 2});
       }},
  };
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{5, 1, 3}, {5, 0, 4}, {9, 0, 0}}) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(make_tensor({9, 7, 2}, 14), mesh, {shard(0, sizes)});
      for (const auto& [name, result] : results) {
        const Tensor y = result(x), flat = y.reshape({-1}), rows = y.flatten(0, -2);
        Tensor refused = at::zeros({2}, at::kLong);
        refused[0] = !message_of([&] { flat.mul_(2); }).empty();
        refused[1] = !message_of([&] { rows.add_(1); }).empty();
        mesh->group().all_reduce(refused);
        for (int i = 0; i < 2; ++i) EXPECT_EQ(refused[i].item<int64_t>() % 3, 0) << name;
      }
    });
  }
}

TEST(View, S26_D08_WritingThroughACopiedView) { check(kCopiesWritten, make_tensor({9, 7, 2}, 9)); }

TEST(View, S26_D08_WritingThroughACopiedViewInInferenceMode) {
  check_in_inference_mode(kCopiesWritten, make_tensor({9, 7, 2}, 10));
}

// The result of contiguous, reshape and the like for a view is a copy exactly where it is one of a plain tensor: writes
// to it stay out of the original then, and reach it where nothing had to be copied.
const std::vector<Case> kContiguous{
    {"transposed",
     [](const Tensor& x) {
       Tensor y = cubed(x), z = y.transpose(0, 1).contiguous();
       z.mul_(2);
       return List{y * y, z};
     },
     kTwice},
    {"transposed_back",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.permute({2, 0, 1}).permute({1, 2, 0}).contiguous().mul_(2);
       y.transpose(0, 2).transpose(2, 0).reshape({63, 2}).add_(1);
       return List{y * y};
     },
     kTwice},
    {"columns",
     [](const Tensor& x) {
       Tensor y = cubed(x), z = y.narrow(1, 1, 3).contiguous(), w = y.slice(0, 0, 9, 2).contiguous();
       z.mul_(2), w.sub_(1);
       return List{y * y, z, w};
     }},
    {"rows",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.narrow(0, 2, 5).contiguous().mul_(2);
       y.select(0, 1).contiguous().add_(1);
       return List{y * y};
     },
     kTwice},
    {"column",
     [](const Tensor& x) {
       Tensor y = cubed(x), z = y.select(1, 2).contiguous(), w = y.diagonal().contiguous(),
              v = y.unbind(2)[1].contiguous();
       z.mul_(2), w.zero_(), v.neg_();
       return List{y * y, z, w, v};
     }},
    {"reshaped",
     [](const Tensor& x) {
       Tensor y = cubed(x), z = y.transpose(0, 1).reshape({63, 2}), w = y.narrow(1, 1, 3).flatten(),
              v = y.permute({2, 1, 0}).reshape(-1);
       z.mul_(2), w.add_(1), v.zero_();
       y.mul_(x);
       return List{y * y, z * 1, w * 1, v + 1};
     },
     kTwice},
    {"reshaped_view",
     [](const Tensor& x) {
       Tensor y = cubed(x);
       y.transpose(0, 1).reshape({7, 3, 3, 2}).select(1, 2).mul_(2);
       y.narrow(0, 1, 4).flatten(1).select(1, 3).add_(1);
       y.select(2, 0).t().reshape({1, 7, 9}).select(2, 4).zero_();
       return List{y * y};
     },
     kForward},
    {"expanded",
     [](const Tensor& x) {
       Tensor y = cubed(x), z = y.narrow(2, 1, 1).expand({9, 7, 3}).contiguous(),
              w = y.unsqueeze(0).expand({2, 9, 7, 2}).reshape({18, 14});
       z.mul_(2), w.mul_(3);
       return List{y * y, z, w};
     }},
    {"detached",
     [](const Tensor& x) {
       Tensor y = cubed(x).detach(), t = y.transpose(0, 1).detach(), z = t.contiguous();
       z.mul_(2);
       Tensor w = t.alias().contiguous().add_(1);
       t.mul_(x.detach().transpose(0, 1));
       return List{y * x, z * x.transpose(0, 1), w};
     }},
    {"split",
     [](const Tensor& x) {
       Tensor y = cubed(x).detach();
       y.split(3, 1)[1].contiguous().mul_(2);
       y.chunk(3, 0)[1].contiguous().mul_(3);
       y.unfold(0, 3, 3).contiguous().zero_();
       return List{y * x};
     }},
    {"channels_last",
     [](const Tensor& x) {
       Tensor y = cubed(x).unsqueeze(0), z = y.contiguous(at::MemoryFormat::ChannelsLast),
              w = y.permute({0, 3, 1, 2}).contiguous();
       z.mul_(2), w.add_(1);
       y.permute({0, 3, 1, 2}).contiguous(at::MemoryFormat::ChannelsLast).mul_(3);
       return List{y * y, z, w};
     }},
    {"of_a_leaf",
     [](const Tensor& x) {
       Tensor y = x.transpose(0, 1), z = y.contiguous();
       z.mul_(2);
       return List{y * x.transpose(0, 1), z};
     },
     kTwice},
};

TEST(View, D08_ContiguousAndReshapeCopyWhatAPlainTensorWouldCopy) {
  check(kContiguous, make_tensor({9, 7, 2}, 11));
  check(kContiguous, make_tensor({9, 7, 2}, 12), kHeldByOneTwoThree);
}

TEST(View, D08_ContiguousAndReshapeCopyInInferenceModeToo) {
  check_in_inference_mode(kContiguous, make_tensor({9, 7, 2}, 12), kHeldByOneTwoThree);
}

// A view of a leaf is a leaf itself: its gradient, accumulated twice, and what an optimizer writes to it.
TEST(View, D08_ALeafWithTheStridesOfAView) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({9, 7}, 9);
    const auto grad_of = [](const Tensor& x) {
      Tensor leaf = x.t().detach().requires_grad_();
      for (int i = 0; i < 2; ++i) (leaf * leaf.detach()).sum().backward();
      {
        const at::NoGradGuard unrecorded;
        leaf.sub_(leaf.grad(), 0.5);
      }
      return std::pair(leaf.grad(), leaf.detach());
    };
    const auto [grad, leaf] = grad_of(shard_of(full, mesh, {shard(0, {4, 0, 5})}));
    const auto [expected_grad, expected] = grad_of(full.clone());
    EXPECT_EQ(difference(full_tensor(grad), expected_grad, 0), "");
    EXPECT_EQ(difference(full_tensor(leaf), expected, 0), "");
  });
}

// Every rank declares the strides that one plain tensor would have, with an empty block too.
TEST(View, D08_StridesAreThoseOfThePlainView) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({9, 7, 2}, 9), x = shard_of(full, mesh, {shard(0, {4, 0, 5})});
    const std::function<Tensor(const Tensor&)> views[] = {
        [](const Tensor& t) { return t.transpose(0, 1); },
        [](const Tensor& t) {
          return t.permute({2, 0, 1}).select(2, 1);
        },
        [](const Tensor& t) { return t.narrow(1, 2, 3); },
        [](const Tensor& t) { return t.slice(0, 1, 9, 3).select(2, 0); },
        [](const Tensor& t) { return t.diagonal(1, 1, 0); },
        [](const Tensor& t) { return t.unfold(1, 3, 2); },
        [](const Tensor& t) { return t.split(4, 1)[1]; },
        [](const Tensor& t) {
          return t.select(2, 1).unsqueeze(1).expand({9, 5, 7});
        },
        [](const Tensor& t) {
          return t.view({3, 3, 14}).transpose(0, 1);
        },
        [](const Tensor& t) { return t.transpose(0, 2).transpose(0, 2); },
        [](const Tensor& t) { return t.transpose(0, 1).contiguous(); },
    };
    for (const auto& view : views) {
      EXPECT_EQ(view(x).strides(), view(full).strides());
      EXPECT_EQ(view(x).is_contiguous(), view(full).is_contiguous());
    }
    const Tensor part = x.transpose(0, 1).as_strided({2}, {1});
    EXPECT_EQ(difference(full_tensor(part), full.transpose(0, 1).as_strided({2}, {1}), 0), "");
    const c10::impl::ExcludeDispatchKeyGuard rule_alone(kSparseCheckKey);
    EXPECT_EQ(message_of([&] { x.transpose(0, 1).as_strided({2}, {1}); }).rfind("as_strided: the rows of this view", 0),
              0u);
  });
}

// Other ways to read a block than by an operator, and owners that are gone.
TEST(View, D08_ACopyIsNeverOld) {
  on_mesh({3}, [](const MeshPtr& mesh) {
    const Tensor full = make_tensor({9, 7}, 9);
    Tensor x = shard_of(full, mesh, {shard(0, {4, 0, 5})});
    const Tensor row = x.select(0, 3), column = row.view({7, 1}), detached = row.detach(), read = row.clone();
    Tensor expected = full.clone();
    const auto same = [&] {
      for (const Tensor& t : {row, detached, column.select(1, 0)}) {
        EXPECT_EQ(difference(full_tensor(t), expected[3], 0), "");
        EXPECT_EQ(difference(to_local(t), expected[3], 0), "");
        EXPECT_EQ(difference(to_local(redistribute(t, {shard(0)})), expected[3].tensor_split(3)[mesh->rank()], 0), "");
        EXPECT_EQ(difference(full_tensor(redistribute_async(t, {shard(0)}).wait()), expected[3], 0), "");
      }
      EXPECT_EQ(difference(full_tensor(x), expected, 0), "");
    };

    x.narrow(1, 0, 2).mul_(2), expected.narrow(1, 0, 2).mul_(2);
    same();
    Tensor(detached).add_(1), expected[3].add_(1);
    same();
    column.slice(0, 0, 3).fill_(4), expected[3].slice(0, 0, 3).fill_(4);
    same();
    at::add_out(const_cast<Tensor&>(row), read, 1), expected[3].copy_(full[3] + 1);
    same();
    EXPECT_EQ(difference(full_tensor(read), full[3], 0), "");

    // A row whose tensor lives on in another row alone.
    Tensor kept, written;
    {
      const Tensor gone = shard_of(full, mesh, {shard(0)});
      kept = gone.view({63}), written = gone.select(0, 8);
    }
    written.zero_();
    EXPECT_EQ(difference(full_tensor(kept), at::cat({full.slice(0, 0, 8).flatten(), at::zeros({7}, at::kDouble)}), 0),
              "");
  });
}

// Writes that are still refused, on every rank, and what could be written instead.
TEST(View, D08_AViewThatCannotBeWrittenIsRefused) {
  struct Refused {
    const char* name;
    std::vector<Placement> placements;
    std::function<Tensor(const Tensor&)> view;
  };
  const Refused cases[] = {
      {"windows_that_overlap", {shard(0)}, [](const Tensor& x) { return x.unfold(0, 3, 1); }},
      {"view_of_a_transposed",
       {shard(0)},
       [](const Tensor& x) {
         return x.transpose(0, 1).view({63, 2});
       }},
      {"view_of_columns", {shard(1)}, [](const Tensor& x) { return x.narrow(1, 1, 3).view(-1); }},
      {"view_of_columns_with_an_empty_block",
       {shard(1, {7, 0})},
       [](const Tensor& x) {
         return x.narrow(1, 1, 3).view({27, 2}).unsqueeze(0);
       }},
  };
  for (const Refused& c : cases) {
    SCOPED_TRACE(c.name);
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(make_tensor({9, 7, 2}, 9), mesh, c.placements), view = c.view(x);
      EXPECT_EQ(
          message_of([&] { view.add_(2); })
              .rfind("aten::add_: this view of a ShardTensor had to be copied, so writing to it in place would be lost",
                     0),
          0u);
      view.clone().mul_(2);
      Tensor(x).mul_(2);
      EXPECT_EQ(
          message_of([&] { view.add(2); })
              .rfind(
                  "aten::add: this view of a ShardTensor had to be copied, and what it was made from has been written",
                  0),
          0u);
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_view_writes
