// SPDX-License-Identifier: Apache-2.0
// HDF5 files between processes: one file, written by all; see tests/io for the same among threads.
#include <gtest/gtest.h>

#include <optional>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/read_together.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/io/support/full_disk.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io {
namespace {

using testing::first_line;
using testing::message_of;

/// A folder that every rank sees, made and removed by rank 0.
class SharedFolder {
 public:
  explicit SharedFolder(Communicator& world) : world_(world) {
    if (world.rank() == 0) mine_.emplace();
    path_ = world.all_gather_strings(mine_ ? *mine_ / "" : "").front();
  }
  ~SharedFolder() { world_.barrier(); }
  std::string operator/(const std::string& name) const { return path_ + name; }

 private:
  Communicator& world_;
  std::optional<testing::Folder> mine_;
  std::string path_;
};

struct MpiFiles : ::testing::Test {
  CommunicatorPtr world = make_mpi_world();
  MeshPtr mesh = init_device_mesh(*world, "cpu", {world->size()});
  SharedFolder folder{*world};
  std::string path = folder / "x.h5";
  at::Tensor full = testing::make_tensor({9, 70}, 4, at::kFloat);
};

TEST_F(MpiFiles, S18BlocksGoIntoOneFileAndComeBack) {
  const at::Tensor x = testing::shard_of(full, mesh, {shard(0)});
  File out = open(path, "w");
  out.write("rows", at::arange(9));
  out.write("x", x, {.attrs = {{"units", std::string("K")}}});
  out.write("deep/squeezed", x, {.chunks = {2, 3}, .compression = 1});
  out.write("deep/steps", x, {.chunks = {1, 70}, .compression = 1});
  out.close();

  const File file = open(path);
  const int64_t before = bytes_read();
  const at::Tensor y = scatter_tensor(file["x"][":, ::2"], mesh, {shard(1)});
  EXPECT_EQ(bytes_read() - before, to_local(y).numel() * 4);
  EXPECT_TRUE(at::equal(full_tensor(y), full.slice(1, 0, 70, 2)));
  EXPECT_TRUE(at::equal(file["x"].read(), full));
  EXPECT_TRUE(at::equal(file["deep/squeezed"].read(), full));
  EXPECT_EQ(file.datasets(), (std::vector<std::string>{"deep/squeezed", "deep/steps", "rows", "x"}));

  const IoStats before_steps = io_stats();  // every rank needs a part of every chunk
  const at::Tensor z = scatter_tensor(file["deep/steps"], mesh, {shard(1)});
  EXPECT_TRUE(at::equal(full_tensor(z), full));
  at::Tensor chunks = at::tensor({io_stats().chunks - before_steps.chunks}, at::kLong);
  world->all_reduce(chunks);
  EXPECT_EQ(chunks.item<int64_t>(), 9);
  EXPECT_EQ(io_stats().library, before_steps.library);
}

/// Columns of what was read do not arrive in their place as they are.
TEST_F(MpiFiles, S18ColumnsOfSharedReadsArriveInTheirPlace) {
  const at::Tensor wide = testing::make_tensor({4000, 300}, 6, at::kFloat);
  if (world->rank() == 0) {
    testing::RawFile raw(path);
    raw.floats("runs", wide);
    raw.floats("columns", full, {.chunks = {9, 33}, .gzip = 1});
  }
  world->barrier();
  const File file = open(path);
  for (const std::vector<Placement>& placements : {std::vector<Placement>{shard(1)}, {shard(0)}, {replicate()}}) {
    EXPECT_TRUE(at::equal(full_tensor(scatter_tensor(file["columns"], mesh, placements)), full));
    EXPECT_TRUE(at::equal(to_local(scatter_tensor(file["columns"], mesh, placements)),
                          to_local(distribute_tensor(full, mesh, placements))));
  }
  const IoStats before = io_stats();
  const at::Tensor x = scatter_tensor(file["runs"], mesh, {shard(1)});
  EXPECT_TRUE(at::equal(to_local(x), to_local(distribute_tensor(wide, mesh, {shard(1)}))));
  if (world->size() > 1) EXPECT_GT(io_stats().exchanged, before.exchanged);
  at::Tensor stored = at::tensor({io_stats().stored - before.stored}, at::kLong);
  world->all_reduce(stored);
  EXPECT_EQ(stored.item<int64_t>(), static_cast<int64_t>(wide.nbytes()));

  for (const char* name : {"runs", "columns"}) {
    const at::Tensor whole = name == std::string("runs") ? wide : full;
    const SpecPtr spec = make_spec(mesh, whole.sizes(), {shard(1)});
    const Interval rows =
        with_halo({.lo = {0, 2}, .hi = {0, 1}}, 1, spec->block_range(1, world->rank()), whole.size(1));
    const at::Tensor block = read_together(file[name], spec, {.dtype = at::kDouble}, {.lo = {0, 2}, .hi = {0, 1}});
    EXPECT_TRUE(at::equal(block, whole.slice(1, rows.begin, rows.end).to(at::kDouble)));
  }
}

TEST_F(MpiFiles, X16_ARankThatCannotReadStopsAll) {
  if (world->rank() == 0) testing::RawFile(path).floats("x", full.repeat({40, 4}));
  world->barrier();
  const File file = open(path);
  world->barrier();
  if (world->rank() == 0) std::filesystem::resize_file(path, 360 << 10);  // of about 400 KiB
  world->barrier();

  const auto message = message_of([&] { scatter_tensor(file["x"], mesh, {shard(0)}); });

  EXPECT_EQ(first_line(message), "read: dataset \"x\" of file \"" + path + "\": the file is cut short");
  const std::string last = std::to_string(world->size() - 1);
  EXPECT_NE(message.find("rank  " + last + " of "), std::string::npos) << message;
}

TEST_F(MpiFiles, X16_ARankThatCannotWriteStopsAllAndHarmsNothing) {
  if (world->rank() == 0) testing::RawFile(path).floats("old", full);
  world->barrier();
  File out = open(path, "w");
  std::string message;
  {
    std::optional<testing::FullDisk> disk;
    if (world->rank() == world->size() - 1) disk.emplace(1000);

    message = message_of([&] { out.write("x", testing::shard_of(full, mesh, {shard(0)})); });
  }

  EXPECT_EQ(first_line(message), "write: dataset \"x\" of file \"" + path + "\": cannot write it");
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  // The disk is in order again, but half a file never takes the place of a good one.
  const std::string late = message_of([&] { out.write("y", testing::shard_of(full, mesh, {shard(0)})); });
  const std::string closed = message_of([&] { out.close(); });
  const std::string why = ": an earlier write failed, and half a file is never finished\n  have  " +
                          first_line(message) + ": File too large (rank " + std::to_string(world->size() - 1) + " of ";
  EXPECT_EQ(late.find("write: dataset \"y\" of file \"" + path + "\"" + why), 0) << late;
  EXPECT_EQ(closed.find("close: file \"" + path + "\"" + why), 0) << closed;
  EXPECT_TRUE(at::equal(open(path)["old"].read(), full));
}

TEST_F(MpiFiles, X16_AFileDroppedAfterAFailedWriteHarmsNothing) {
  if (world->rank() == 0) testing::RawFile(path).floats("old", full);
  world->barrier();
  {
    File out = open(path, "a");
    out.write("before", testing::shard_of(full, mesh, {shard(0)}));
    std::optional<testing::FullDisk> disk;
    if (world->rank() == world->size() - 1) disk.emplace(1000);

    EXPECT_NE(message_of([&] { out.write("x", testing::shard_of(full, mesh, {shard(0)})); }), "");
  }
  world->barrier();
  EXPECT_EQ(open(path).keys(), std::vector<std::string>{"old"});
  EXPECT_TRUE(at::equal(open(path)["old"].read(), full));
}

}  // namespace
}  // namespace moonhalo::io
