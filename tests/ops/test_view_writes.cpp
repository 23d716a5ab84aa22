// SPDX-License-Identifier: Apache-2.0
// Writing through views that had to be copied, and reading them after their originals were written: features S26, D08.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/shard_tensor.h"
#include "tests/support/held.h"

namespace moonhalo::testing {
namespace {

using at::Tensor;

const Oracle kTwice{.double_backward = true};
const Oracle kForward{.backward = false};

Tensor bent(const Tensor& x) { return x * x * x; }

// Views that had to be copied: a row of another rank, a cut that moved, a narrowed block with gaps. Under autograd, and
// whatever is written or read in between.
const std::vector<Case> kCopiesWritten{
    {"row",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.select(0, 3).mul_(2);
       y.select(1, -1).add_(x.select(1, 0)).mul_(x.select(1, 2));
       y.select(2, 1).sub_(3);
       return List{y * y};
     },
     kTwice},
    {"row_of_a_row",
     [](const Tensor& x) {
       Tensor y = bent(x);
       Tensor row = y.select(0, 2), cell = row.select(0, 5);
       cell.mul_(x.select(0, 0).select(0, 0));
       row.slice(0, 0, 3).exp_();
       return List{y * y, row * 2, cell};
     },
     kTwice},
    {"assigned",
     [](const Tensor& x) {
       using at::indexing::Slice;
       Tensor y = bent(x);
       y.index_put_({4}, x.select(0, 1));
       y.index_put_({Slice(1, 3), 2}, 0.5);
       y.index_put_({Slice(), Slice(), -1}, make_tensor({9, 7}, 3));
       y.index_put_({0, 0, 0}, x.sum());
       return List{y * x};
     },
     kTwice},
    {"plain_into_transposed_row",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.transpose(0, 1).select(0, 1).copy_(make_tensor({9, 2}, 4));
       y.transpose(0, 2).select(2, 1).select(1, 3).fill_(2);
       return List{y * y};
     }},
    {"another_cut",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.select(0, 1).copy_(x.transpose(0, 1).select(1, 2) * 2);
       y.select(1, 4).copy_(x.flip({0, 2}).select(1, 1));
       return List{y * y};
     }},
    {"masked_row",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.select(0, 8).masked_fill_(x.detach().select(0, 0).gt(0), 0.5);
       y.view({63, 2}).masked_fill_(x.detach().view({63, 2}).lt(-0.5), -1);
       return List{y * y};
     }},
    {"moved_cut",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.view({63, 2}).mul_(x.reshape({63, 2}));
       y.view({9, 14}).select(1, 5).zero_();
       y.flatten().slice(0, 3, 120, 5).add_(1);
       return List{y * y};
     },
     kTwice},
    {"unflattened",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.unflatten(0, {3, 3}).select(0, 1).mul_(3);
       y.view({3, 3, 14}).transpose(0, 1).select(0, 2).copy_(x.slice(0, 0, 3).flatten(1));
       return List{y * y};
     },
     kTwice},
    {"gaps",
     [](const Tensor& x) {
       Tensor y = bent(x);
       Tensor middle = y.narrow(1, 1, 3), flat = middle.reshape({54});
       flat = flat * 1;
       middle.view({9, 6}).mul_(2);
       middle.select(0, 4).view({6}).sub_(1);
       return List{y * y, flat, middle * y.narrow(1, 0, 3)};
     },
     kForward},
    {"diagonal",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.diagonal(1).fill_(2);
       y.diagonal().select(1, 2).mul_(3);
       y.select(2, 0).diagonal(-1).copy_(x.select(2, 1).diagonal());
       return List{y * y};
     }},
    {"unbound_and_split",
     [](const Tensor& x) {
       const Tensor y = bent(x).detach();
       y.unbind(0)[1].mul_(2);
       y.unbind(1)[6].copy_(x.detach().select(1, 0));
       y.split(4, 0)[1].view({8, 7}).add_(1);
       y.chunk(3, 1)[2].select(0, 0).zero_();
       return List{y * x};
     }},
    {"windows",
     [](const Tensor& x) {
       Tensor y = bent(x);
       y.unfold(0, 2, 2).select(3, 1).mul_(2);
       y.unfold(0, 3, 4).add_(x.detach().unfold(0, 3, 4));
       y.unfold(1, 2, 3).fill_(1);
       return List{y * y};
     },
     kForward},
    {"sums_of_rows",
     [](const Tensor& x) {
       Tensor y = bent(x);
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
       Tensor y = bent(x);
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

TEST(View, S26_D08_WritingThroughACopiedView) { check(kCopiesWritten, make_tensor({9, 7, 2}, 9)); }

TEST(View, S26_D08_WritingThroughACopiedViewInInferenceMode) {
  std::vector<Case> cases = kCopiesWritten;
  for (Case& c : cases) {
    c.options = kForward;
    c.run = [run = c.run](const Tensor& x) {
      c10::InferenceMode inference;
      return run(x.clone());
    };
  }
  check(cases, make_tensor({9, 7, 2}, 10));
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
    EXPECT_EQ(difference(full_tensor(kept), at::cat({full.slice(0, 0, 8).flatten(), at::zeros({7}, at::kDouble)}), 0), "");
  });
}

// What is still refused, on every rank alike, and what could be written instead.
TEST(View, D08_AViewThatCannotBeWrittenIsRefused) {
  struct Refused {
    const char* name;
    std::vector<Placement> placements;
    std::function<Tensor(const Tensor&)> view;
  };
  const Refused cases[] = {
      {"windows_that_overlap", {shard(0)}, [](const Tensor& x) { return x.unfold(0, 3, 1); }},
      {"reshape_of_a_transposed", {shard(0)}, [](const Tensor& x) { return x.transpose(0, 1).reshape({63, 2}); }},
      {"reshape_of_columns", {shard(1)}, [](const Tensor& x) { return x.narrow(1, 1, 3).flatten(); }},
      {"reshape_of_columns_with_an_empty_block", {shard(1, {7, 0})}, [](const Tensor& x) { return x.narrow(1, 1, 3).flatten(0, 1).unsqueeze(0); }},
  };
  for (const Refused& c : cases) {
    SCOPED_TRACE(c.name);
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const Tensor x = shard_of(make_tensor({9, 7, 2}, 9), mesh, c.placements), view = c.view(x);
      EXPECT_EQ(message_of([&] { view.add_(2); })
                    .rfind("aten::add_: this view of a ShardTensor had to be copied, so writing to it in place would be lost", 0),
                0u);
      view.clone().mul_(2);
      Tensor(x).mul_(2);
      EXPECT_EQ(message_of([&] { view.add(2); })
                    .rfind("aten::add: this view of a ShardTensor had to be copied, and what it was made from has been written", 0),
                0u);
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing
