// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/shares/file_shares.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/placements.h"

namespace moonhalo::io::test_file_shares {
namespace {

SpecPtr spec_of(const std::vector<int64_t>& mesh, const std::vector<int64_t>& shape,
                const std::vector<Placement>& placements) {
  const int64_t ranks = c10::multiply_integers(mesh);
  return make_spec(init_device_mesh(*make_fake_communicator(0, static_cast<int>(ranks)), "cpu", mesh), shape,
                   placements);
}

/// Counts how often each byte of the tensor is in a rank's runs.
at::Tensor times_written(const FileShares& shares, int64_t element_bytes) {
  at::Tensor times = at::zeros({c10::multiply_integers(shares.shape) * element_bytes}, at::kByte);
  for (const Box& box : shares.boxes) {
    int64_t runs = 0, bytes = 0;
    for_each_run(shares.shape, box, element_bytes, [&](int64_t offset, int64_t length) {
      times.narrow(0, offset, length) += 1;
      bytes += length;
      ++runs;
    });
    EXPECT_EQ(runs, count_runs(shares.shape, box));
    EXPECT_EQ(bytes, box.numel() * element_bytes);
  }
  return times;
}

bool inside(const ShardSpec& spec, const Box& box, int64_t rank) {
  for (int64_t dim = 0; dim < spec.ndim(); ++dim) {
    if (!box.empty() && !spec.block_range(dim, rank).contains(box[dim])) return false;
  }
  return true;
}

double max_over_mean(const std::vector<int64_t>& bytes) {
  const auto total = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) * static_cast<double>(bytes.size()) /
         static_cast<double>(total);
}

struct ShareCase {
  const char* name;
  std::vector<int64_t> mesh, shape;
  std::vector<Placement> placements;
  bool moves;
};

const ShareCase kCases[] = {
    {"rows", {3}, {300, 70}, {shard(0)}, false},
    {"uneven_and_empty_rows", {4}, {300, 70}, {shard(0, {200, 0, 99, 1})}, false},
    {"copies_share_rows", {3}, {300, 70}, {replicate()}, false},
    {"copies_of_uneven_rows", {2, 3}, {500, 90}, {shard(0, {460, 40}), replicate()}, false},
    {"nested_cuts", {2, 2}, {301, 70}, {shard(0, {300, 1}), shard(0)}, false},
    {"short_runs", {3}, {900, 60}, {shard(1, {10, 0, 50})}, true},
    {"short_runs_of_two_dims", {2, 2}, {90, 60, 7}, {shard(0), shard(2)}, true},
    {"long_runs_of_an_inner_dim", {2}, {3, 40000}, {shard(1, {10000, 30000})}, false},
    {"few_rows_of_copies", {4}, {3, 40000}, {replicate()}, false},
    {"partial", {2, 2}, {300, 70}, {partial(), shard(0)}, false},
    {"small", {3}, {7}, {replicate()}, false},
    {"small_and_cut", {3}, {7}, {shard(0)}, false},
    {"no_dims", {3}, {}, {replicate()}, false},
    {"no_elements", {3}, {0, 4}, {shard(1)}, false},
    {"no_elements_of_copies", {3}, {4, 0}, {replicate()}, false},
};

struct FileSharesTest : ::testing::TestWithParam<ShareCase> {};

TEST_P(FileSharesTest, N40_EveryByteIsWrittenOnceByARankThatHasIt) {
  const ShareCase& c = GetParam();
  const SpecPtr spec = spec_of(c.mesh, c.shape, c.placements);
  std::vector<int64_t> bytes(spec->mesh()->size());

  const FileShares shares = share_out(*spec, 4, bytes);

  EXPECT_EQ(shares.moves, c.moves);
  EXPECT_TRUE(times_written(shares, 4).eq(1).all().item<bool>());
  for (int64_t rank = 0; rank < spec->mesh()->size(); ++rank) {
    EXPECT_EQ(bytes[rank], shares.boxes[rank].numel() * 4);
    if (!c.moves) EXPECT_TRUE(inside(*without_partial(spec), shares.boxes[rank], rank)) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Io, FileSharesTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

/// Any placement: cuts of any dim in blocks of any size, nested too, copies and addends.
std::vector<Placement> draw_placements(testing::Draw& draw, const std::vector<int64_t>& mesh,
                                       const std::vector<int64_t>& shape) {
  std::vector<Placement> placements;
  std::vector<bool> uneven(shape.size());
  for (const int64_t ranks : mesh) {
    if (shape.empty() || draw.percent(40)) {
      placements.push_back(draw.percent(20) ? partial() : replicate());
      continue;
    }
    const int64_t dim = draw.below(static_cast<int64_t>(shape.size()));
    std::vector<int64_t> sizes;
    const bool nested = std::any_of(placements.begin(), placements.end(), [&](auto& p) { return p.dim == dim; });
    if (!nested && draw.percent(70)) {
      int64_t left = shape[dim];
      for (int64_t i = 1; i < ranks; ++i) sizes.push_back(draw.below(left + 1)), left -= sizes.back();
      sizes.push_back(left);
    }
    placements.push_back(shard(dim, sizes));
  }
  return placements;
}

TEST(FileShares, N40_AnySpecsWriteEveryByteOnce) {
  testing::Draw draw("file shares");
  const std::vector<std::vector<int64_t>> meshes = {{1}, {2}, {5}, {2, 2}, {3, 2}, {2, 2, 2}};
  for (int i = 0; i < 400; ++i) {
    const auto& mesh = meshes[draw.below(static_cast<int64_t>(meshes.size()))];
    std::vector<int64_t> shape(draw.below(4));
    for (int64_t& size : shape) size = draw.below(draw.percent(20) ? 90 : 14);
    const auto placements = draw_placements(draw, mesh, shape);
    const SpecPtr spec = spec_of(mesh, shape, placements);
    SCOPED_TRACE(spec->to_string());
    std::vector<int64_t> bytes(spec->mesh()->size());

    EXPECT_TRUE(times_written(share_out(*spec, 8, bytes), 8).eq(1).all().item<bool>());
    if (HasFailure()) return;
  }
}

TEST(FileShares, N40_RanksWriteNearlyAsMuchAsEachOther) {
  for (const std::vector<int64_t>& mesh : std::vector<std::vector<int64_t>>{{3}, {5}, {7}, {2, 2}, {4, 2}}) {
    const int64_t ranks = c10::multiply_integers(mesh);
    const MeshPtr all = init_device_mesh(*make_fake_communicator(0, static_cast<int>(ranks)), "cpu", mesh);
    std::vector<Placement> copies(mesh.size(), replicate()), cut = copies;
    cut[0] = shard(1);
    std::vector<int64_t> bytes(ranks);
    for (int layer = 0; layer < 12; ++layer) {
      share_out(*make_spec(all, {769, 771}, copies), 4, bytes);
      share_out(*make_spec(all, {5, 31, 3001}, copies), 4, bytes);
      share_out(*make_spec(all, {769, 771}, cut), 4, bytes);
      for (int norm = 0; norm < 4; ++norm) share_out(*make_spec(all, {771}, copies), 4, bytes);
    }
    EXPECT_LE(max_over_mean(bytes), 1.01) << ranks;
  }
}

TEST(FileShares, PiecesAreTheBoxInOrder) {
  const Box box{{2, 5}, {1, 8}, {0, 4}};
  EXPECT_THAT(pieces_of(box, 4, 1 << 20), ::testing::ElementsAre(box));
  EXPECT_THAT(pieces_of(box, 4, 2 * 7 * 4 * 4),
              ::testing::ElementsAre(Box{{2, 4}, {1, 8}, {0, 4}}, Box{{4, 5}, {1, 8}, {0, 4}}));
  EXPECT_THAT(pieces_of({{2, 3}, {1, 8}, {0, 4}}, 4, 4 * 4 * 4),
              ::testing::ElementsAre(Box{{2, 3}, {1, 5}, {0, 4}}, Box{{2, 3}, {5, 8}, {0, 4}}));
  EXPECT_EQ(pieces_of(box, 4, 1).size(), 84u);
  EXPECT_TRUE(pieces_of({{2, 2}, {1, 8}}, 4, 8).empty());
}

}  // namespace
}  // namespace moonhalo::io::test_file_shares
