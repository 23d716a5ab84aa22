// SPDX-License-Identifier: Apache-2.0
// Sliding blocks on cuts against the whole tensor, X03.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/base/text.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_fold {
namespace {

struct Case {
  std::vector<int64_t> kernel, dilation, padding, stride;
};

const Case kCases[] = {
    {{3, 3}, {1, 1}, {1, 1}, {1, 1}}, {{2, 2}, {1, 1}, {0, 0}, {2, 2}}, {{2, 3}, {2, 1}, {1, 0}, {1, 2}},
    {{5, 1}, {1, 1}, {2, 0}, {3, 1}}, {{9, 2}, {1, 1}, {0, 1}, {1, 1}}, {{1, 1}, {1, 1}, {0, 0}, {3, 2}},
};

const Placed kCuts[] = {
    {{2}, {shard(2, {5, 4})}},      {{3}, {shard(2, {1, 7, 1})}},
    {{3}, {shard(2, {4, 0, 5})}},   {{2}, {shard(3, {1, 5})}},
    {{2, 2}, {shard(2), shard(3)}}, {{2, 2}, {shard(0), shard(2, {8, 1})}},
    {{2}, {shard(1, {2, 1})}},      {{2}, {partial()}},
};

TEST(Fold, UnfoldAndBackEqualTheWholeTensor) {
  for (const Case& c : kCases) {
    for (const Placed& cut : kCuts) {
      SCOPED_TRACE(shape_string(c.kernel) + " " + cut.placements[0].to_string());
      expect_same_as_plain(
          cut.mesh, {{.full = make_tensor({2, 3, 9, 6}, 1), .placements = cut.placements}},
          [&](const Tensors& t) {
            const at::Tensor blocks = at::im2col(t[0], c.kernel, c.dilation, c.padding, c.stride);
            return Tensors{blocks, at::col2im(blocks * blocks, {9, 6}, c.kernel, c.dilation, c.padding, c.stride)};
          },
          {.double_backward = true});
    }
  }
}

TEST(Fold, ColumnsCutAnywhere) {
  const auto program = [](const Tensors& t) {
    return Tensors{at::col2im(t[0], {9, 6}, {3, 2}, {1, 1}, {1, 0}, {1, 1}),
                   at::col2im(t[0][0], {9, 6}, {3, 2}, {1, 1}, {1, 0}, {1, 1})};
  };
  for (const Placed& cut :
       {Placed{{2}, {shard(2, {20, 25})}}, Placed{{2}, {shard(2, {7, 38})}}, Placed{{3}, {shard(2, {0, 43, 2})}},
        Placed{{2}, {shard(1, {6, 6})}}, Placed{{2}, {shard(1, {5, 7})}}, Placed{{2, 2}, {shard(0), shard(2)}}}) {
    expect_same_as_plain(cut.mesh, {{.full = make_tensor({2, 12, 45}, 1), .placements = cut.placements}}, program);
  }
}

TEST(Fold, RefusesWindowsThatDoNotFit) {
  EXPECT_THAT(message_of([] {
                on_mesh({2}, [](const MeshPtr& mesh) {
                  at::im2col(shard_of(make_tensor({1, 1, 4, 6}, 1), mesh, {shard(2)}), {5, 1}, {1, 1}, {0, 0}, {1, 1});
                });
              }),
              ::testing::HasSubstr("aten::im2col: a window of 5 rows is larger than the padded input of 4"));
}

}  // namespace
}  // namespace moonhalo::testing::test_fold
