// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads put the rows that they read straight into each other's blocks.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "moonhalo/engine/base/stream_copy.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/checkpoint/checkpoint_read.h"
#include "moonhalo/io/checkpoint/safetensors.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/io/shares/cell_layout.h"
#include "moonhalo/io/shares/shared_blocks.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::io::test_put_in_place {
namespace {

using namespace testing;

TEST(PutInPlace, StreamsOfAnyLengthAndAlignmentTouchNothingElse) {
  std::vector<char> from(60000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i % 251);  // no two pages are the same
  for (const size_t bytes : {0, 1, 63, 255, 256, 257, 320, 511, 1024, 4000, 16383, 16384, 16448, 49999}) {
    for (const size_t offset : {0, 1, 16, 63, 64, 100}) {
      std::vector<char> to(from.size(), char{-7}), expected = to;
      std::memcpy(expected.data() + offset, from.data() + 3, bytes);
      stream_copy(to.data() + offset, from.data() + 3, bytes);
      finish_stream();
      EXPECT_EQ(to, expected) << bytes << " bytes at " << offset;
    }
  }
}

TEST(PutInPlace, APartGoesFromOneDenseBoxIntoAnother) {
  const at::Tensor whole = at::arange(8 * 7 * 90, at::kInt).view({8, 7, 90});
  const Box from{{1, 6}, {2, 7}, {10, 90}}, to{{0, 4}, {3, 5}, {0, 85}}, part = from.intersect(to);
  const auto of = [&](const Box& box) {
    at::Tensor rows = whole;
    for (int64_t dim = 0; dim < 3; ++dim) rows = rows.slice(dim, box[dim].begin, box[dim].end);
    return rows.contiguous();
  };
  const at::Tensor source = of(from);
  const DenseBox dense_from{from, 4}, dense_to{to, 4};
  for (const bool streamed : {false, true}) {
    const at::Tensor target = at::full(to.shape(), -1, at::kInt);
    const StridedCopy copy = copy_between(dense_from, dense_to, part);
    const char* first = static_cast<const char*>(source.const_data_ptr()) + dense_from.offset(part);
    char* place = static_cast<char*>(target.mutable_data_ptr()) + dense_to.offset(part);
    streamed ? copy.stream(first, place) : copy.copy(first, place);
    finish_stream();
    EXPECT_TRUE(at::equal(target.slice(0, 1, 4).slice(2, 10, 85), of(part)));
    EXPECT_EQ((target == -1).sum().item<int64_t>(), target.numel() - part.numel());
  }
}

TEST(PutInPlace, BlocksLiveAsLongAsARankMayWriteIntoThem) {
  on_ranks(3, [](Communicator& world) {
    at::Tensor mine = at::zeros({3}, at::kInt);
    ASSERT_TRUE(SharedBlocks::possible(world));
    auto blocks = std::make_unique<SharedBlocks>(world, std::vector{mine});
    world.barrier();
    if (world.rank() == 1) {
      mine.reset();
      blocks.reset();
    }
    world.barrier();
    const int value = world.rank() + 1;
    if (blocks) blocks->put(0, &value, {{world.rank(), value}}, [](int64_t) { return Box{{0, 3}}; });
    world.barrier();
    if (blocks) EXPECT_TRUE(at::equal(blocks->block(1, 0), at::tensor({1, 0, 3}, at::kInt)));
    if (blocks) EXPECT_TRUE(at::equal(mine, at::tensor({1, 0, 3}, at::kInt)));
  });
  EXPECT_FALSE(SharedBlocks::possible(*make_fake_communicator(0, 2)));
}

/// Row S18, where blocks are too large for the caches, and where chunks are decoded.
TEST(PutInPlace, S18LargeBlocks) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor whole = make_tensor({24, 300, 1000}, 3, at::kFloat);
  {
    RawFile file(path);
    file.floats("runs", whole);
    file.floats("chunks", whole, {.chunks = {1, 300, 1000}, .gzip = 1});
  }
  for (const char* name : {"runs", "chunks"}) {
    for (const Placed& cut : {Placed{{2}, {shard(2, {701, 299})}}, Placed{{2, 2}, {shard(2, {990, 10}), shard(1)}},
                              Placed{{3}, {shard(2, {0, 999, 1})}}}) {
      on_mesh(cut.mesh, [&](const MeshPtr& mesh) {
        const int64_t before = io_stats().exchanged;
        const at::Tensor x = scatter_tensor(open(path)[name], mesh, cut.placements);
        EXPECT_TRUE(at::equal(to_local(x), to_local(distribute_tensor(whole, mesh, cut.placements))));
        if (to_local(x).numel() > 0) EXPECT_GT(io_stats().exchanged, before);
      });
    }
  }
}

/// Row S10: blocks that cut runs, copies, values that are cast, blocks that are in memory with strides.
TEST(PutInPlace, S10CheckpointsOfLargeTensors) {
  const Folder folder;
  const std::string path = folder / "state.safetensors";
  std::vector<std::pair<std::string, at::Tensor>> whole;
  for (const char* name : {"a", "b", "c"}) {
    whole.emplace_back(name,
                       make_tensor({40 + static_cast<int64_t>(whole.size()), 30, 1000}, whole.size(), at::kFloat));
  }
  save_safetensors(path, whole);
  for (const Placed& cut : {Placed{{3}, {shard(2, {701, 299, 0})}}, Placed{{2, 2}, {shard(2, {990, 10}), replicate()}},
                            Placed{{2, 2}, {shard(2, {600, 400}), shard(1, {29, 1})}}, Placed{{4}, {replicate()}},
                            Placed{{2}, {shard(1, {1, 29})}}}) {
    on_mesh(cut.mesh, [&](const MeshPtr& mesh) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        CheckpointReader reader(mesh->group());
        reader.add("model", path, read_safetensors_text(path));
        std::vector<at::Tensor> targets;
        for (const auto& [name, tensor] : whole) {
          const SpecPtr spec = make_spec(mesh, tensor.sizes().vec(), cut.placements);
          const auto& shape = spec->local_shape();
          const at::Tensor block = at::zeros({shape[2], shape[1], shape[0]}, dtype);
          targets.push_back(from_local(name == std::string("b") ? block.permute({2, 1, 0}) : block.view(shape), spec));
          reader.read_into("model", name, targets.back());
        }
        reader.finish();
        for (size_t i = 0; i < targets.size(); ++i) {
          EXPECT_TRUE(at::equal(full_tensor(targets[i]), whole[i].second.to(dtype))) << whole[i].first;
        }
      }
    });
  }
}

}  // namespace
}  // namespace moonhalo::io::test_put_in_place
