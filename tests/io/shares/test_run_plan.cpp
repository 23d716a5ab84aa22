// SPDX-License-Identifier: Apache-2.0
// Contiguous data cut into short runs: read in long ones, each byte once over all ranks, and exchanged.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/read_together.h"
#include "moonhalo/io/fields/scatter.h"
#include "moonhalo/io/shares/run_plan.h"
#include "tests/io/support/classic_file.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_run_plan {
namespace {

using namespace testing;

TEST(RunPlan, IsMadeWhereRunsAreShortAndThereIsMuchToRead) {
  const struct {
    const char* name;
    std::vector<int64_t> mesh, shape;
    std::vector<Placement> placements;
    bool shared;
  } cases[] = {
      {"innermost dim", {4}, {256, 1024, 1024}, {shard(2)}, true},
      {"two dims", {2, 2}, {256, 1024, 1024}, {shard(1), shard(2)}, true},
      {"short rows far apart", {4}, {4000, 64, 64}, {shard(1)}, true},
      {"long rows", {4}, {256, 1024, 1024}, {shard(1)}, false},
      {"outermost dim", {4}, {256, 1024, 1024}, {shard(0)}, false},
      {"little to read", {4}, {8, 64, 64}, {shard(2)}, true},
      {"little to read in long rows", {4}, {8, 64, 64}, {shard(1)}, false},
      {"little to read of many short rows", {4}, {8, 16, 64}, {shard(1)}, true},
      {"little to read, whole", {4}, {8, 64, 64}, {replicate()}, false},
      {"one row", {2}, {1, 3}, {shard(1)}, false},
      {"twelve numbers", {2}, {4, 3}, {shard(1)}, true},
      {"one rank", {1}, {256, 1024, 1024}, {shard(2)}, false},
      {"a vector", {4}, {1 << 26}, {shard(0)}, false},
      {"nothing", {2}, {0, 4}, {shard(1)}, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const auto ranks = static_cast<int>(c10::multiply_integers(c.mesh));
    const CommunicatorPtr world = make_fake_communicator(ranks - 1, ranks);
    const SpecPtr spec = make_spec(init_device_mesh(*world, "cpu", c.mesh), c.shape, c.placements);
    const std::vector<int64_t> strides;
    const auto plan = plan_runs({-1, 0, 4, c.shape, strides}, whole(c.shape), spec, {});
    EXPECT_EQ(plan.has_value(), c.shared);
    if (!plan) continue;
    int64_t read = 0;
    for (int64_t round = 0; round < plan->rounds(); ++round) {
      for (int64_t rank = 0; rank < ranks; ++rank) read += rows_of(plan->grid(), plan->cells_read(round, rank)).numel();
    }
    EXPECT_EQ(read, c10::multiply_integers(c.shape));
  }
}

/// Row S18: of a small file, too, the ranks together read no more than 1.5 times what they need, and none more than 1.5
/// times an equal share.
TEST(RunPlan, S18SmallFilesAreNotReadWholeByEveryRank) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const std::vector<std::pair<std::string, at::Tensor>> written = {{"a", make_tensor({24, 30, 20}, 3, at::kFloat)},
                                                                   {"b", make_tensor({64, 48}, 4, at::kDouble)},
                                                                   {"c", make_tensor({5, 40, 6, 8}, 5, at::kShort)}};
  File out = open(path, "w");
  for (const auto& [name, whole] : written) out.write(name, whole);
  out.close();
  for (const auto& [name, whole] : written) {
    for (int64_t dim = 0; dim < whole.dim(); ++dim) {
      for (const int ranks : {2, 3, 4}) {
        SCOPED_TRACE(name + " " + std::to_string(dim) + " " + std::to_string(ranks));
        std::atomic<int64_t> stored{0}, most{0};
        on_mesh({ranks}, [&, &name = name, &whole = whole](const MeshPtr& mesh) {
          const File file = open(path);
          const int64_t before = io_stats().stored;
          const at::Tensor x = scatter_tensor(file[name], mesh, {shard(dim)});
          EXPECT_TRUE(at::equal(to_local(x), to_local(distribute_tensor(whole, mesh, {shard(dim)}))));
          const int64_t mine = io_stats().stored - before;
          stored += mine;
          for (int64_t seen = most; seen < mine && !most.compare_exchange_weak(seen, mine);) {
          }
        });
        const auto bytes = static_cast<double>(whole.nbytes());
        const double largest =
            static_cast<double>((whole.size(dim) + ranks - 1) / ranks) / static_cast<double>(whole.size(dim));
        EXPECT_LE(static_cast<double>(stored), 1.5 * bytes);
        EXPECT_LE(static_cast<double>(most), 1.5 * bytes * std::max(largest, 1.0 / ranks) + 4096);
      }
    }
  }
}

constexpr int64_t kShape[] = {24, 300, 200};

const std::vector<Placed>& cuts() {
  static const std::vector<Placed> all = {{{2}, {shard(2)}},
                                          {{3}, {shard(2, {150, 0, 50})}},
                                          {{4}, {shard(2, {1, 99, 3, 97})}},
                                          {{2, 2}, {shard(1, {299, 1}), shard(2)}},
                                          {{2, 2}, {shard(2), shard(0, {5, 19})}},
                                          {{2, 2}, {replicate(), shard(2, {30, 170})}}};
  return all;
}

/// Row S18: the same blocks, and every byte of the file is read once.
TEST(RunPlan, S18EachByteIsReadOnceOverAllRanks) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  std::vector<std::pair<std::string, at::Tensor>> written;
  File out = open(path, "w");
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kShort, at::kBool, at::kComplexFloat}) {
    written.emplace_back(std::string("x") + c10::toString(dtype), make_tensor(kShape, 3, dtype));
    out.write(written.back().first, written.back().second);
  }
  out.close();
  for (const auto& [name, whole] : written) {
    for (const Placed& cut : cuts()) {
      SCOPED_TRACE(name);
      std::atomic<int64_t> stored{0};
      std::atomic<bool> shared{false};
      on_mesh(cut.mesh, [&, &name = name, &whole = whole](const MeshPtr& mesh) {
        const File file = open(path);
        const IoStats before = io_stats();

        const at::Tensor x = scatter_tensor(file[name], mesh, cut.placements);

        EXPECT_TRUE(at::equal(to_local(x), to_local(distribute_tensor(whole, mesh, cut.placements))));
        EXPECT_EQ(bytes_read() - before.asked, to_local(x).numel() * static_cast<int64_t>(whole.element_size()));
        stored += io_stats().stored - before.stored;
        if (io_stats().exchanged > before.exchanged) shared = true;
      });
      if (whole.element_size() >= 4) {
        EXPECT_TRUE(shared);
        EXPECT_EQ(stored, static_cast<int64_t>(whole.nbytes()));
      }
    }
  }
}

TEST(RunPlan, S18SelectionsDecodingAndHalos) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor whole = make_tensor(kShape, 5, at::kFloat);
  File out = open(path, "w");
  out.write("x", whole, {.attrs = {{"scale_factor", 0.5}}});
  out.close();
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Dataset data = open(path)["x"];
    const auto exchanged = [&](const auto& work) {
      const int64_t before = io_stats().exchanged;
      work();
      EXPECT_GT(io_stats().exchanged, before);
    };
    exchanged([&] {
      const at::Tensor part =
          scatter_tensor(data["1::2, ::, 7:190"], mesh, {shard(2, {10, 100, 73})}, {.dtype = at::kDouble});
      EXPECT_TRUE(at::equal(full_tensor(part), whole.slice(0, 1, 24, 2).slice(2, 7, 190).to(at::kDouble)));
    });
    exchanged([&] {
      const at::Tensor decoded = scatter_tensor(data, mesh, {shard(2)}, {.decode = true});
      EXPECT_TRUE(at::equal(full_tensor(decoded), whole * 0.5));
    });
    exchanged([&] {
      const SpecPtr spec = make_spec(mesh, kShape, {shard(2, {90, 20, 90})});
      const at::Tensor block = read_together(data, spec, {}, {.lo = {0, 0, 2}, .hi = {9, 9, 30}});
      const std::vector<std::pair<int64_t, int64_t>> rows = {{0, 120}, {88, 140}, {108, 200}};
      const auto [begin, end] = rows[static_cast<size_t>(mesh->rank())];
      EXPECT_TRUE(at::equal(block, whole.slice(2, begin, end)));
    });
    const at::Tensor strided = scatter_tensor(data["..., ::2"], mesh, {shard(2)});  // elements apart: through HDF5
    EXPECT_TRUE(at::equal(full_tensor(strided), whole.slice(2, 0, 200, 2)));
  });
}

TEST(RunPlan, S18NetCdf3InTheOtherByteOrder) {
  const Folder folder;
  const std::string path = folder / "x.nc";
  const at::Tensor whole = make_tensor(kShape, 7, at::kFloat);
  std::string turned(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
  swap_bytes(turned.data(), 4, static_cast<size_t>(whole.numel()));
  testing::ClassicFile file(2);
  file.dims = {{"time", 0}, {"y", 300}, {"x", 200}};
  file.records = 24;
  file.variables = {{"v", {0, 1, 2}, 5, turned}, {"beside", {0}, 5, std::string(24 * 4, '\0')}};
  std::ofstream(path, std::ios::binary) << file.bytes();
  for (const Placed& cut : cuts()) {
    std::atomic<bool> shared{false};
    on_mesh(cut.mesh, [&](const MeshPtr& mesh) {
      const int64_t before = io_stats().exchanged;
      const at::Tensor x = scatter_tensor(open(path)["v"], mesh, cut.placements);
      EXPECT_TRUE(at::equal(to_local(x), to_local(distribute_tensor(whole, mesh, cut.placements))));
      if (io_stats().exchanged > before) shared = true;
    });
    EXPECT_TRUE(shared);
  }
}

TEST(RunPlan, X16AFileCutShortFailsOnEveryRankAlike) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  { RawFile(path).floats("x", make_tensor(kShape, 5, at::kFloat)); }
  std::vector<std::string> messages(3);
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Dataset data = open(path)["x"];
    mesh->group().barrier();
    if (mesh->rank() == 0) std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    mesh->group().barrier();
    messages[static_cast<size_t>(mesh->rank())] = message_of([&] { scatter_tensor(data, mesh, {shard(2)}); });
  });
  EXPECT_NE(messages[0].find("the file is cut short"), std::string::npos) << messages[0];
  EXPECT_EQ(messages, std::vector<std::string>(3, messages[0]));
}

}  // namespace
}  // namespace moonhalo::io::test_run_plan
