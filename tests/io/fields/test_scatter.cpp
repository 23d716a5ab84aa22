// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/fake_device.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::io::test_scatter {
namespace {

using namespace testing;

struct ScatterCase {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<int64_t> global;
  std::vector<Placement> placements;
};

const std::vector<ScatterCase>& cases() {
  static const std::vector<ScatterCase> all = {
      {"one_rank", {1}, {5, 4}, {shard(0)}},
      {"9_rows_as_5_and_4", {2}, {3, 9, 7}, {shard(1)}},
      {"9_rows_as_3_and_6", {2}, {3, 9, 7}, {shard(1, {3, 6})}},
      {"7_rows_as_1_5_1", {3}, {7, 2}, {shard(0, {1, 5, 1})}},
      {"an_empty_block", {3}, {2, 5}, {shard(0)}},
      {"last_dim", {4}, {6, 5, 33}, {shard(-1)}},
      {"two_dims_on_2x2", {2, 2}, {2, 9, 7}, {shard(1, {3, 6}), shard(2)}},
      {"one_dim_on_2x2", {2, 2}, {11, 3}, {shard(0), shard(0)}},
      {"replicate_and_shard", {2, 2}, {9, 3}, {replicate(), shard(0)}},
      {"shard_and_replicate", {2, 2}, {9, 3}, {shard(0, {3, 6}), replicate()}},
      {"replicate", {3}, {4, 3}, {replicate()}},
  };
  return all;
}

/// Row S18: every rank reads its block and nothing else, and the tensor is the one that
/// scatter_tensor makes of the whole.
TEST(ScatterFromFile, S18EachRankReadsItsBlock) {
  const Folder folder;
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const std::string path = folder / (std::string(c.name) + ".h5");
    const at::Tensor full = field(c.global);
    const std::vector<hsize_t> chunk(c.global.size(), 2);
    {
      RawFile raw(path);
      raw.floats("contiguous", full);
      raw.floats("chunks", full, {.chunks = chunk, .gzip = 1});
    }
    for (const char* name : {"contiguous", "chunks"}) {
      on_mesh(c.mesh, [&](const MeshPtr& mesh) {
        const File file = open(path);
        const int64_t before = bytes_read();

        const at::Tensor x = scatter_tensor(file[name], mesh, c.placements);

        EXPECT_EQ(bytes_read() - before, to_local(x).numel() * 4);
        const at::Tensor expected = distribute_tensor(full, mesh, c.placements);
        EXPECT_EQ(spec(x), spec(expected));
        EXPECT_TRUE(at::equal(to_local(x), to_local(expected)));
        EXPECT_TRUE(at::equal(full_tensor(x), full));
      });
    }
  }
}

TEST(ScatterFromFile, F4_BlocksReachDevicesByPageLockedMemory) {
  fake::install();
  const Folder folder;
  const std::string path = folder / "device.h5";
  const at::Tensor full = field({3, 9, 7});
  RawFile(path).floats("u", full);
  on_ranks(2, [&](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "fake", {2});
    const File file = open(path);
    const fake::Counts before = fake::counts();

    const at::Tensor x = scatter_tensor(file["u"], mesh, {shard(1)});

    const fake::Counts made = fake::counts() - before;
    EXPECT_EQ(made.pageable, 0);
    EXPECT_EQ(made.host_waits, 0);
    EXPECT_EQ(made.host_bytes, to_local(x).nbytes());
    EXPECT_TRUE(at::equal(full_tensor(x).cpu(), full));
  });
}

TEST(ScatterFromFile, TakesSelectionsDtypesAndDecoding) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor full = field({4, 9, 7});
  {
    RawFile raw(path);
    raw.floats("x", full);
    raw.number<double>("x", "scale_factor", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {2});
  }
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x =
        scatter_tensor(open(path)["x"]["2, 1:, ::2"], mesh, {shard(0, {3, 5})}, {.dtype = at::kDouble, .decode = true});

    EXPECT_EQ(x.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(full_tensor(x), full.select(0, 2).slice(0, 1).slice(1, 0, 7, 2).to(at::kDouble) * 2));
  });
}

TEST(ScatterFromFile, S18ABlockWithItsHaloReadsNoMore) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor full = field({3, 9, 7});
  { RawFile(path).floats("x", full); }
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const SpecPtr spec = make_spec(mesh, {3, 9, 7}, {shard(1, {4, 1, 4})});
    const int64_t before = bytes_read();

    const at::Tensor block = read_block(open(path)["x"], *spec, {}, {.lo = {0, 2, 0}, .hi = {9, 1, 9}});

    const std::vector<std::pair<int64_t, int64_t>> rows = {{0, 5}, {2, 6}, {3, 9}};
    const auto [begin, end] = rows[static_cast<size_t>(mesh->rank())];
    EXPECT_TRUE(at::equal(block, full.slice(1, begin, end)));
    EXPECT_EQ(bytes_read() - before, block.numel() * 4);
  });
}

/// The halo may be wider than a neighbour's block, and blocks may be empty or replicated.
TEST(ScatterFromFile, S18ScatterWithHalo) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor full = field({5, 9, 64});
  {
    RawFile raw(path);
    raw.floats("x", full);
    raw.floats("chunks", full, {.chunks = {1, 9, 64}, .gzip = 1});
    for (const char* name : {"x", "chunks"})
      raw.number<double>(name, "scale_factor", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {2});
  }
  const std::vector<Placed> cuts = {{{1}, {shard(1)}},
                                    {{3}, {shard(1, {7, 0, 2})}},
                                    {{4}, {shard(2, {1, 20, 0, 43})}},
                                    {{2, 2}, {shard(1, {8, 1}), shard(2, {60, 4})}},
                                    {{2, 2}, {replicate(), shard(0, {1, 4})}}};
  for (const Placed& cut : cuts) {
    for (const char* name : {"x", "chunks"}) {
      for (const int64_t halo : {0, 1, 3, 100}) {
        on_mesh(cut.mesh, [&](const MeshPtr& mesh) {
          const auto [x, padded] = scatter_with_halo(open(path)[name], mesh, cut.placements,
                                                     {.dtype = at::kDouble, .decode = true, .halo = halo});

          at::Tensor expected = full.to(at::kDouble) * 2;
          const at::Tensor owned = distribute_tensor(expected, mesh, cut.placements);
          for (int64_t dim = 0; dim < 3; ++dim) {
            const Interval rows = spec(owned)->block_range(dim, mesh->rank());
            if (!spec(owned)->is_cut(dim)) continue;
            expected = expected.slice(dim, std::max<int64_t>(rows.begin - halo, 0), rows.end + halo);
          }
          EXPECT_TRUE(at::equal(padded, expected));
          EXPECT_EQ(spec(x), spec(owned));
          EXPECT_TRUE(at::equal(to_local(x), to_local(owned)));
          to_local(x).zero_();  // the halo has memory of its own
          EXPECT_TRUE(at::equal(padded, expected));
        });
      }
    }
  }
}

TEST(ScatterFromFile, FailsOnEveryRankAlike) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const std::string short_path = folder / "short.h5";
  for (const auto& name : {path, short_path}) RawFile(name).floats("x", field({64, 1024}));
  struct Case {
    std::string first_line;
    std::function<void(const MeshPtr&, const File&)> call;
  };
  const std::string start = "scatter_tensor: dataset \"x\" of file \"" + path + "\": ";
  const std::vector<Case> failures = {
      {"open: no dataset \"y\" in file \"" + path + "\"; did you mean 'x'?",
       [](const MeshPtr& mesh, const File& file) { scatter_tensor(file["y"], mesh, {shard(0)}); }},
      {start + "Partial(sum) is not a way to hold a dataset",
       [](const MeshPtr& mesh, const File& file) { scatter_tensor(file["x"], mesh, {partial()}); }},
      {start + "halo 1 is not 0",
       [](const MeshPtr& mesh, const File& file) { scatter_tensor(file["x"], mesh, {shard(0)}, {.halo = 1}); }},
      {start + "halo -1 is below 0",
       [](const MeshPtr& mesh, const File& file) { scatter_with_halo(file["x"], mesh, {shard(0)}, {.halo = -1}); }},
      {start + "the ranks selected different data",
       [](const MeshPtr& mesh, const File& file) {
         scatter_with_halo(file["x"], mesh, {shard(0)}, {.halo = mesh->rank() + 1});
       }},
      {start + "the ranks selected different data",
       [](const MeshPtr& mesh, const File& file) {
         scatter_tensor(file["x"][mesh->rank() == 1 ? "1:" : ":63"], mesh, {shard(0)});
       }},
      {start + "the ranks selected different data",
       [](const MeshPtr& mesh, const File& file) {  // as many rows, of other steps
         scatter_tensor(file["x"][mesh->rank() == 1 ? "0:32" : "0:64:2"], mesh, {shard(0)});
       }},
      {"read_block: a selection of shape [64, 1024] is not the spec's tensor",
       [](const MeshPtr& mesh, const File& file) {
         read_block(file["x"].select("..."), *make_spec(mesh, {63, 1024}, {shard(0)}), {}, {});
       }},
  };
  for (const auto& failure : failures) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const File file = open(path);
      EXPECT_EQ(first_line(message_of([&] { failure.call(mesh, file); })), failure.first_line);
    });
  }
  on_mesh({3}, [&](const MeshPtr& mesh) {  // block sizes that do not add up
    EXPECT_NE(message_of([&] { scatter_tensor(open(path)["x"], mesh, {shard(0, {1, 2, 3})}); }), "");
  });
  on_mesh({3}, [&](const MeshPtr& mesh) {  // only the last rank's block is missing from the file
    const File file = open(short_path);
    mesh->group().barrier();
    if (mesh->rank() == 0) std::filesystem::resize_file(short_path, 200 << 10);
    mesh->group().barrier();
    const std::string message = message_of([&] { scatter_tensor(file["x"], mesh, {shard(0)}); });
    EXPECT_EQ(first_line(message), "read: dataset \"x\" of file \"" + short_path + "\": the file is cut short");
    EXPECT_NE(message.find("\n  rank  2 of 3"), std::string::npos) << message;
  });
}

TEST(WriteShards, MakesOneOrdinaryFile) {
  const Folder folder;
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const std::string path = folder / (std::string(c.name) + ".h5");
    const at::Tensor full = field(c.global);
    on_mesh(c.mesh, [&](const MeshPtr& mesh) {
      const at::Tensor x = distribute_tensor(full, mesh, c.placements);
      File out = open(path, "w");
      out.write("before", at::arange(3));
      out.write("x", x, {.attrs = {{"units", std::string("K")}}});
      out.write("group/squeezed", x.to(at::kDouble), {.compression = 1});
      out.write("after", at::arange(4));
      out.set_attr("title", std::string("shards"));
      out.close();

      const File file = open(path);  // it stands under its name as soon as any rank has left close()
      EXPECT_TRUE(at::equal(file["x"].read(), full));
      EXPECT_TRUE(at::equal(file["group/squeezed"].read(), full.to(at::kDouble)));
      EXPECT_EQ(file["x"].units(), "K");
      EXPECT_EQ(file.keys(), (std::vector<std::string>{"after", "before", "group", "x"}));
      EXPECT_EQ(std::get<std::string>(file.attr("title")), "shards");
    });
  }
  for (const auto& name : folder.names()) EXPECT_TRUE(name.ends_with(".h5")) << name;
}

TEST(WriteShards, AddsToAFileAndResolvesAPartial) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  { RawFile(path).floats("old", field({3})); }
  const at::Tensor full = field({4, 3});
  on_mesh({2}, [&](const MeshPtr& mesh) {
    File out = open(path, "a");
    out.write("sum", testing::shard_of(full.to(at::kDouble), mesh, {partial()}));
    out.close();
  });

  const File file = open(path);
  EXPECT_TRUE(at::equal(file["old"].read(), field({3})));
  EXPECT_TRUE(at::allclose(file["sum"].read(), full.to(at::kDouble)));
}

TEST(WriteShards, FailsOnEveryRankAlike) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  { RawFile(path).floats("x", field({3})); }
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = distribute_tensor(field({5, 3}), mesh, {shard(0)});
    File adding = open(path, "a");
    const std::string start = "write: dataset \"x\" of file \"" + path + "\": ";
    EXPECT_EQ(first_line(message_of([&] { adding.write("x", x); })), start + "it exists already");
    adding.discard();
    EXPECT_EQ(first_line(message_of([&] { open(path).write("x", x); })), start + "the file is open for reading only");
    File out = open(path, "w");
    out.write("y", x);
    EXPECT_EQ(first_line(message_of([&] { out.keys(); })),
              "keys: group \"/\" of file \"" + path + "\": the file is being written by several ranks");
    out.discard();
  });
  EXPECT_TRUE(at::equal(open(path)["x"].read(), field({3})));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.h5"});
}

}  // namespace
}  // namespace moonhalo::io::test_scatter
