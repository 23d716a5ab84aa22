// SPDX-License-Identifier: Apache-2.0
// Windows over cut dims are divided into an interior and slabs: X06. Pure, so one process asks for every rank.
#include "moonhalo/ops/window/halo_split.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "moonhalo/engine/base/box_text.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/ops/support/spec_edits.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_halo_split {
namespace {

struct Case {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
  std::vector<Window> windows;
  std::vector<int64_t> output_rows = {};  // blocks of the output, if not those of the windows' centres
};

// Blocks of a field of 9 rows and 7 columns.
const Case kCases[] = {
    {"same, uneven", {3}, {shard(0, {5, 1, 3})}, {{3, 1, 1, 1}, {3, 1, 1, 1}}},
    {"empty blocks", {4}, {shard(0, {0, 4, 0, 5})}, {{4, 1, 1, 1}, {}}},
    {"halo wider than neighbours", {4}, {shard(0, {1, 1, 6, 1})}, {{7, 1, 1, 3}, {}}},
    {"window over all blocks", {3}, {shard(0)}, {{9, 1, 1, 4}, {}}},
    {"no padding", {3}, {shard(0, {2, 5, 2})}, {{4, 1, 1, 0}, {}}},
    {"strided", {3}, {shard(0, {3, 2, 4})}, {{3, 2, 1, 1}, {}}},
    {"stride wider than the window", {2}, {shard(0, {4, 5})}, {{1, 3, 1, 0}, {}}},
    {"dilated", {2}, {shard(0, {4, 5})}, {{3, 1, 2, 2}, {3, 1, 3, 3}}},
    {"kernel of one", {3}, {shard(0)}, {{}, {}}},
    {"outputs below the rows", {3}, {shard(0, {7, 1, 1})}, {{3, 1, 1, 1}, {}}, {3, 3, 3}},
    {"outputs above the rows", {3}, {shard(0, {1, 1, 7})}, {{3, 1, 1, 1}, {}}, {4, 3, 2}},
    {"both dims", {2, 2}, {shard(0, {4, 5}), shard(1, {3, 4})}, {{5, 1, 1, 2}, {3, 1, 1, 1}}},
    {"both dims, thin", {2, 3}, {shard(0, {1, 8}), shard(1, {1, 1, 5})}, {{3, 1, 2, 2}, {4, 2, 1, 2}}},
    {"both dims, rows that are never read", {2, 2}, {shard(0, {4, 5}), shard(1, {3, 4})}, {{1, 3, 1, 0}, {3, 1, 1, 1}}},
    {"transposed", {3}, {shard(0, {4, 0, 5})}, {{4, 2, 1, 1, true}, {}}},
    {"transposed, gaps", {3}, {shard(0)}, {{1, 3, 1, 0, true}, {}}},
    {"transposed, dilated", {4}, {shard(0, {1, 2, 1, 5})}, {{3, 1, 3, 1, true}, {}}},
    {"transposed, both dims", {2, 2}, {shard(0, {2, 7}), shard(1)}, {{4, 2, 1, 1, true}, {5, 1, 1, 2, true}}},
};

HaloReach reach_of_case(const Case& c) {
  const auto ranks = c10::multiply_integers(c.mesh);
  const SpecPtr from = make_spec(init_device_mesh(*make_fake_communicator(0, static_cast<int>(ranks)), "cpu", c.mesh),
                                 {9, 7}, c.placements);
  Layout out = from->layout();
  for (int64_t d = 0; d < 2; ++d) {
    const Window& w = c.windows[d];
    const int64_t extent = out.global_shape[d];
    out.global_shape[d] =
        w.transposed ? (extent - 1) * w.stride - 2 * w.padding + w.reach() : window_outputs(w, extent);
    if (out.cuts[d]) out.cuts[d].sizes = w.output_sizes(out.cuts[d].sizes, out.global_shape[d]);
  }
  if (!c.output_rows.empty()) out.cuts[0].sizes = c.output_rows;
  return reach_of(from, intern(out), c.windows);
}

void for_each(const Box& box, const std::function<void(int64_t row, int64_t column)>& body) {
  for (int64_t row = box[0].begin; row < box[0].end; ++row) {
    for (int64_t column = box[1].begin; column < box[1].end; ++column) body(row, column);
  }
}

bool holds(const Box& box, int64_t row, int64_t column) { return box[0].contains(row) && box[1].contains(column); }

bool contains(const Box& box, const Box& inner) { return box.intersect(inner) == inner; }

// True if an output reads a row, along one dim, by the definition of windows.
bool reads(const Window& window, int64_t output, int64_t row) {
  for (int64_t k = 0; k < window.kernel; ++k) {
    const int64_t place = (window.transposed ? row : output) * window.stride - window.padding + k * window.dilation;
    if (place == (window.transposed ? output : row)) return true;
  }
  return false;
}

// The number of `boxes` that hold the element.
int64_t holders(const std::vector<Box>& boxes, int64_t row, int64_t column) {
  return std::count_if(boxes.begin(), boxes.end(), [&](const Box& box) { return holds(box, row, column); });
}

void for_each_rank(const std::function<void(const Case&, const HaloReach&, int64_t rank)>& body) {
  for (const Case& c : kCases) {
    const HaloReach reach = reach_of_case(c);
    for (int64_t rank = 0; rank < reach.input->mesh()->size(); ++rank) {
      SCOPED_TRACE(std::string(c.name) + ", rank " + std::to_string(rank));
      body(c, reach, rank);
    }
  }
}

// Each element that some output reads is owned, or is sent once; what is not read stays where it is.
TEST(HaloSplit, X06_RanksBorrowOnceWhatTheyLack) {
  for_each_rank([](const Case& c, const HaloReach& reach, int64_t rank) {
    const Box owned = block_box(*reach.input, rank), block = block_box(*reach.output, rank);
    const std::vector<Box> halo_rows = halo_boxes(reach, rank);
    Box hull = owned;  // the rows that the block reads
    for (const HaloReach::Dim& dim : reach.cut)
      hull[dim.dim] = dim.reads(block[dim.dim]).intersect({0, reach.input->global_shape()[dim.dim]});

    for (const Box& box : halo_rows) {
      EXPECT_TRUE(box.empty() || contains(hull, box)) << box_string(box);
      for_each(box, [&](int64_t row, int64_t column) {
        EXPECT_FALSE(holds(owned, row, column));
        EXPECT_EQ(holders(halo_rows, row, column), 1);
      });
    }
    for_each(hull, [&](int64_t row, int64_t column) {
      EXPECT_EQ(holds(owned, row, column) + holders(halo_rows, row, column), 1) << row << ", " << column;
    });
    for (int64_t d = 0; d < 2; ++d) {
      if (!spans_ranks(reach.input, d)) continue;
      for (int64_t output = block[d].begin; output < block[d].end; ++output) {
        for (int64_t row = 0; row < reach.input->global_shape()[d]; ++row)
          EXPECT_TRUE(!reads(c.windows[d], output, row) || block.empty() || hull[d].contains(row));
      }
    }
  });
}

TEST(HaloSplit, X06_EachOutputBelongsToOnePart) {
  for_each_rank([](const Case& c, const HaloReach& reach, int64_t rank) {
    if (c.windows[0].transposed) return;
    const HaloSplit split = split_outputs(reach, rank);
    std::vector<Box> outputs{split.interior->output};
    for (const HaloSplit::Part& slab : split.slabs) {
      outputs.push_back(slab.output);
      for (const auto& [dim, reads_of, feeds] : reach.cut) EXPECT_EQ(slab.input[dim], reads_of(slab.output[dim]));
    }

    for_each(block_box(*reach.output, rank),
             [&](int64_t row, int64_t column) { EXPECT_EQ(holders(outputs, row, column), 1) << split.to_string(); });
    // The interior reads no row of another rank, and no output that could belong to it is missing.
    const Box owned = block_box(*reach.input, rank);
    for_each(block_box(*reach.output, rank), [&](int64_t row, int64_t column) {
      bool reads_others = false;
      for (const HaloReach::Dim& dim : reach.cut) {
        const int64_t output = dim.dim == 0 ? row : column;
        const Interval window = dim.reads({output, output + 1});
        reads_others |= std::max<int64_t>(window.begin, 0) < owned[dim.dim].begin ||
                        std::min(window.end, reach.input->global_shape()[dim.dim]) > owned[dim.dim].end;
      }
      EXPECT_EQ(holds(split.interior->output, row, column), !reads_others) << split.to_string();
    });
  });
}

// Each pair of an output and a row that it reads is counted by one part, and the part's kernel sees both.
TEST(HaloSplit, X06_EachInputRowBelongsToOnePart) {
  for_each_rank([](const Case& c, const HaloReach& reach, int64_t rank) {
    const HaloSplit split = split_inputs(reach, rank);
    const Box owned = block_box(*reach.input, rank), block = block_box(*reach.output, rank);
    ASSERT_EQ(split.slabs.size(), split.halo_rows.size());
    const auto counts = [&](const HaloSplit::Part& part, const Box& rows, const Box& output, const Box& row) {
      return contains(part.output, output) && contains(rows, row) && contains(part.input, row);
    };
    for_each(block, [&](int64_t y, int64_t x) {
      for_each({{0, 9}, {0, 7}}, [&](int64_t row, int64_t column) {
        if (!reads(c.windows[0], y, row) || !reads(c.windows[1], x, column)) return;
        const Box output{{y, y + 1}, {x, x + 1}}, element{{row, row + 1}, {column, column + 1}};
        int64_t terms = counts(*split.interior, owned, output, element);
        for (size_t i = 0; i < split.slabs.size(); ++i)
          terms += counts(split.slabs[i], split.halo_rows[i], output, element);
        EXPECT_EQ(terms, 1) << split.to_string() << box_string(output) << box_string(element);
      });
    });
    // Slabs are as narrow as the rows that they add: each of their outputs reads one of them.
    for (size_t i = 0; i < split.slabs.size(); ++i) {
      const int64_t across = reach.cut[i / 2].dim;
      const Interval outputs = split.slabs[i].output[across], rows = split.halo_rows[i][across];
      if (split.slabs[i].output.empty()) continue;
      const Window& window = c.windows[across];
      EXPECT_FALSE(window.transposed ? window.outputs_fed(rows).intersect(outputs).empty()
                                     : window.input_read({outputs.begin, outputs.begin + 1}).intersect(rows).empty());
    }
  });
}

TEST(HaloSplit, X06_IsPrinted) {
  const HaloReach reach = reach_of_case(kCases[0]);  // rows 5, 1 and 3, a window of 3
  EXPECT_EQ(split_outputs(reach, 0).to_string(),
            "interior [0:4, 0:7] reads [0:5, 0:7]\n"
            "slab [4:5, 0:7] reads [3:6, 0:7]\n"
            "fetched [0:0, 0:7]\n"
            "fetched [5:6, 0:7]\n");
  EXPECT_EQ(split_inputs(reach, 1).to_string(),
            "interior [5:6, 0:7] reads [5:6, 0:7]\n"
            "slab [5:6, 0:7] reads [4:7, 0:7]\n"
            "slab [5:6, 0:7] reads [4:7, 0:7]\n"
            "fetched [4:5, 0:7]\n"
            "fetched [6:7, 0:7]\n");
  EXPECT_EQ(undivided({{0, 2}}, {{-1, 4}}).to_string(), "slab [0:2] reads [-1:4]\nfetched [-1:4]\n");
}

// The examples of conv.h and halo_split.h: 10 rows in blocks of 4, 3 and 3, and a kernel of 3.
TEST(HaloSplit, X06_ExampleOfTheHeaders) {
  const SpecPtr spec =
      make_spec(init_device_mesh(*make_fake_communicator(0, 3), "cpu", {3}), {10}, {shard(0, {4, 3, 3})});
  const HaloReach reach = reach_of(spec, spec, {{3, 1, 1, 1}});
  EXPECT_EQ(split_inputs(reach, 0).to_string(),
            "interior [0:4] reads [0:4]\nslab [0:0] reads [0:0]\nslab [3:4] reads [2:5]\n"
            "fetched [0:0]\nfetched [4:5]\n");
  EXPECT_EQ(split_inputs(reach, 1).to_string(),
            "interior [4:7] reads [4:7]\nslab [4:5] reads [3:6]\nslab [6:7] reads [5:8]\n"
            "fetched [3:4]\nfetched [7:8]\n");
  EXPECT_EQ(split_inputs(reach, 2).to_string(),
            "interior [7:10] reads [7:10]\nslab [7:8] reads [6:9]\nslab [7:7] reads [0:0]\n"
            "fetched [6:7]\nfetched [0:0]\n");
  EXPECT_EQ(split_outputs(reach, 1).to_string(),
            "interior [5:6] reads [4:7]\nslab [4:5] reads [3:6]\nslab [6:7] reads [5:8]\n"
            "fetched [3:4]\nfetched [7:8]\n");
}

// With two cut dims the first dim's boxes reach over the corners.
TEST(HaloSplit, X06_CornersBelongToTheFirstDim) {
  const HaloReach reach = reach_of_case(kCases[11]);  // blocks of rows 4, 5 and columns 3, 4
  EXPECT_EQ(halo_boxes(reach, 0),
            (std::vector<Box>{{{0, 0}, {0, 0}}, {{4, 6}, {0, 4}}, {{0, 0}, {0, 0}}, {{0, 4}, {3, 4}}}));
  EXPECT_EQ(halo_boxes(reach, 3),
            (std::vector<Box>{{{2, 4}, {2, 7}}, {{0, 0}, {0, 0}}, {{4, 9}, {2, 3}}, {{0, 0}, {0, 0}}}));
}

// Windows of neighbourhood attention are pushed off the ends of the domain; dilated ones do not move on with each
// query: of the middle block the third query lacks a row, the first two do not.
TEST(HaloSplit, X06_PushedWindows) {
  const SpecPtr spec =
      make_spec(init_device_mesh(*make_fake_communicator(0, 3), "cpu", {3}), {15}, {shard(0, {1, 7, 7})});
  const auto window_of = [](int64_t query) {  // 3 of every third key
    const int64_t first = std::clamp<int64_t>(query / 3 - 1, 0, 2) * 3 + query % 3;
    return Interval{first, first + 7};
  };
  const auto keys = [&](const Interval& queries) {
    if (queries.empty()) return Interval{0, 0};
    Interval all = window_of(queries.begin);
    for (int64_t q = queries.begin; q < queries.end; ++q)
      all = {std::min(all.begin, window_of(q).begin), std::max(all.end, window_of(q).end)};
    return all;
  };
  const HaloReach reach{spec, spec, {{0, keys, {}}}};
  EXPECT_EQ(split_outputs(reach, 0).to_string(),
            "interior [0:0] reads [0:1]\nslab [0:1] reads [0:7]\nfetched [0:0]\nfetched [1:7]\n");
  EXPECT_EQ(split_outputs(reach, 1).to_string(),
            "interior [4:5] reads [1:8]\nslab [1:4] reads [0:9]\nslab [5:8] reads [2:11]\n"
            "fetched [0:1]\nfetched [8:11]\n");
}

TEST(HaloSplit, X06_MapsBringTheBorrowedBoxes) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const HaloReach reach = reach_of_case(c);
    const HaloMaps maps = halo_maps(reach, reach.input);
    const std::vector<Box> halo_rows = halo_boxes(reach, 0);
    int64_t elements = 0;
    for (int64_t rank = 0; rank < reach.input->mesh()->size(); ++rank) {
      for (const Box& box : halo_boxes(reach, rank)) elements += box.numel();
    }
    ASSERT_EQ(maps.size(), elements > 0 ? halo_rows.size() : 0);
    for (size_t i = 0; i < maps.size(); ++i) {
      EXPECT_EQ(maps[i]->needed_shape(), halo_rows[i].shape());
      EXPECT_EQ(maps[i]->elements_received(), halo_rows[i].numel());
    }
  }
}

TEST(HaloSplit, X06_TilesArePutTogether) {
  const at::Tensor field = at::arange(9 * 7).view({9, 7, 1}).expand({9, 7, 2});  // a dim that boxes leave alone
  const auto tile = [&](const Box& box) {
    return Tile{field.narrow(0, box[0].begin, box[0].size()).narrow(1, box[1].begin, box[1].size()).clone(), box};
  };
  const std::vector<Tile> tiles{tile({{2, 5}, {0, 4}}), tile({{5, 9}, {0, 4}}), tile({{0, 2}, {1, 7}})};
  const Tile whole{at::full({4, 5, 2}, -1, at::kLong), {{3, 7}, {-1, 4}}};
  at::Tensor expected = whole.data.clone();
  expected.narrow(1, 1, 4).copy_(field.narrow(0, 3, 4).narrow(1, 0, 4));

  EXPECT_TRUE(at::equal(assemble(whole.box, tiles, -1), expected));
  const at::Tensor view = assemble({{3, 5}, {1, 2}}, tiles, 0);
  EXPECT_EQ(view.storage().data_ptr().get(), tiles[0].data.storage().data_ptr().get());
  EXPECT_TRUE(at::equal(view, field.narrow(0, 3, 2).narrow(1, 1, 1)));
  // Adjoint: what the box has of each tile is added to it.
  for (const Tile& each : tiles) add_overlap(each, {at::ones({4, 5, 2}, at::kLong), whole.box});
  EXPECT_TRUE(at::equal(tiles[0].data.narrow(0, 1, 2), tile({{3, 5}, {0, 4}}).data + 1));
  EXPECT_TRUE(at::equal(tiles[0].data.narrow(0, 0, 1), tile({{2, 3}, {0, 4}}).data));
  EXPECT_TRUE(at::equal(tiles[2].data, tile({{0, 2}, {1, 7}}).data));
}

}  // namespace
}  // namespace moonhalo::testing::test_halo_split
