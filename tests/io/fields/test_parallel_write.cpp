// SPDX-License-Identifier: Apache-2.0
// All ranks write the bytes of a file whose metadata one of them writes; HDF5's own reader is the judge.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cstdlib>
#include <optional>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/io/support/full_disk.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_parallel_write {
namespace {

using testing::first_line;
using testing::Folder;
using testing::FullDisk;
using testing::message_of;
using testing::on_mesh;
using testing::RawFile;
using testing::shard_of;

/// Waves that compress, and differ everywhere.
at::Tensor field(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return at::arange(count, at::kDouble).mul(0.37).floor().add(1).view(shape).to(dtype);
}

/// As HDF5 itself reads it; of the field's dtype.
at::Tensor library_read(const std::string& path, const std::string& name, const at::Tensor& like) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t id = H5Dopen2(file, name.c_str(), H5P_DEFAULT), type = H5Dget_type(id);
  const hid_t memory = H5Tget_native_type(type, H5T_DIR_DEFAULT);
  at::Tensor out = at::empty(like.sizes(), like.scalar_type());
  EXPECT_EQ(H5Tget_size(memory), like.element_size());
  EXPECT_GE(H5Dread(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.mutable_data_ptr()), 0) << name;
  for (const hid_t open : {type, memory}) H5Tclose(open);
  H5Dclose(id);
  H5Fclose(file);
  return out;
}

struct Cut {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
};

const Cut cuts[] = {{"one", {1}, {shard(0)}},
                    {"even_rows", {2}, {shard(0)}},
                    {"uneven_rows", {3}, {shard(0, {1, 8, 2})}},
                    {"an_empty_block", {3}, {shard(1, {5, 0, 4})}},
                    {"columns", {4}, {shard(2)}},
                    {"grid", {2, 2}, {shard(1, {3, 6}), shard(2)}},
                    {"copies", {2, 2}, {replicate(), shard(1)}},
                    {"copies_alone", {3}, {replicate()}}};

struct Stored {
  const char* name;
  WriteOptions options;
};

const Stored layouts[] = {{"run", {}},
                          {"chunks", {.chunks = {4, 3, 5}}},
                          {"gzip_steps", {.chunks = {1, 9, 14}, .compression = 1}},
                          {"gzip_tiles", {.chunks = {2, 4, 5}, .compression = 4}},
                          {"gzip_whole", {.chunks = {11, 9, 14}, .compression = 9}},
                          {"gzip_rows", {.chunks = {1, 1, 14}, .compression = 6}}};

/// Row X11: whatever the cut, one ordinary file.
TEST(ParallelWrite, X11_EveryCutAndLayoutIsOneOrdinaryFile) {
  const Folder folder;
  for (const Cut& cut : cuts) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kShort, at::kBool, at::kComplexFloat, at::kUInt16}) {
      if (dtype != at::kFloat && cut.mesh.size() < 2) continue;
      SCOPED_TRACE(std::string(cut.name) + " " + c10::toString(dtype));
      const std::string path = folder / "x.h5";
      const at::Tensor full = field({11, 9, 14}, dtype);
      on_mesh(cut.mesh, [&](const MeshPtr& mesh) {
        const at::Tensor x = shard_of(full, mesh, cut.placements);
        File out = open(path, "w");
        for (const Stored& stored : layouts) out.write(stored.name, x, stored.options);
        out.write("deep/" + std::string(cut.name), x.to(dtype));
        out.close();
      });
      for (const Stored& stored : layouts) {
        EXPECT_TRUE(at::equal(library_read(path, stored.name, full), full)) << stored.name;
        EXPECT_TRUE(at::equal(open(path)[stored.name].read(), full)) << stored.name;
      }
      EXPECT_TRUE(at::equal(open(path)[std::string("deep/") + cut.name].read(), full));
    }
  }
}

/// Rounds: more than 8 MiB a rank. And no chunk is compressed twice, or leaves a hole where another size was.
TEST(ParallelWrite, ACompressedFileIsAsSmallAsHdf5s) {
  const Folder folder;
  const at::Tensor full = field({24, 512, 512}) + at::rand({24, 512, 512}) * 0.01;
  { RawFile(folder / "theirs.h5").floats("x", full, {.chunks = {1, 512, 512}, .gzip = 4}); }
  for (const int64_t dim : {0, 1, 2}) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      const at::Tensor x = shard_of(full, mesh, {shard(dim)});
      File out = open(folder / "ours.h5", "w");
      out.write("x", x, {.chunks = {1, 512, 512}, .compression = 4});
      out.close();
    });
    EXPECT_TRUE(at::equal(library_read(folder / "ours.h5", "x", full), full));
    EXPECT_LE(static_cast<double>(std::filesystem::file_size(folder / "ours.h5")),
              1.01 * static_cast<double>(std::filesystem::file_size(folder / "theirs.h5")));
  }
}

/// Bytes that gzip cannot make smaller are stored as they are, and the file says so.
TEST(ParallelWrite, NoiseIsStoredAsItIs) {
  const Folder folder;
  const at::Tensor full = at::randint(0, 256, {64, 1024}).to(at::kByte);
  File out = open(folder / "x.h5", "w");
  out.write("x", full, {.chunks = {16, 1024}, .compression = 9});
  out.close();
  EXPECT_TRUE(at::equal(library_read(folder / "x.h5", "x", full), full));
  EXPECT_LE(std::filesystem::file_size(folder / "x.h5"), (64 << 10) + 8192);
}

/// Where clients of a file system do not see each other's writes, one rank writes what all have.
TEST(ParallelWrite, OneWriterGivesTheSameFile) {
  const Folder folder;
  const at::Tensor full = field({11, 9, 14});
  setenv("MOONHALO_ONE_WRITER", "1", 1);
  on_mesh({2, 2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(full, mesh, {shard(1, {3, 6}), shard(2)});
    File out = open(folder / "x.h5", "w");
    for (const Stored& stored : layouts) out.write(stored.name, x, stored.options);
    out.write("scalar", x.sum());
    out.append("rows", x);
    out.append("rows", x);
    out.close();
  });
  unsetenv("MOONHALO_ONE_WRITER");
  for (const Stored& stored : layouts) EXPECT_TRUE(at::equal(library_read(folder / "x.h5", stored.name, full), full));
  EXPECT_TRUE(at::equal(open(folder / "x.h5")["rows"].read(), at::cat({full, full})));
  EXPECT_TRUE(at::equal(open(folder / "x.h5")["scalar"].read(), full.sum()));
}

struct Growth {
  const char* name;
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
  WriteOptions options;
};

const Growth growths[] = {{"default_chunks", {2}, {shard(1)}, {}},
                          {"a_step_a_chunk", {3}, {shard(1, {2, 0, 7})}, {.chunks = {1, 9, 5}, .compression = 2}},
                          {"steps_share_chunks", {3}, {shard(1)}, {.chunks = {4, 4, 5}, .compression = 2}},
                          {"cut_in_time", {2}, {shard(0)}, {.chunks = {4, 4, 5}}},
                          {"grid", {2, 2}, {shard(1), shard(2, {4, 1})}, {.chunks = {3, 9, 5}, .compression = 4}},
                          {"longer_chunks", {1}, {shard(0)}, {.chunks = {50, 3, 3}, .compression = 4}}};

TEST(Append, X17_RowsOfAnyNumberGoBehindThoseThatAreThere) {
  const Folder folder;
  const at::Tensor all = field({14, 9, 5});
  const std::vector<int64_t> steps = {1, 2, 4, 0, 1, 6};
  for (const Growth& growth : growths) {
    for (const bool sharded : {true, false}) {
      SCOPED_TRACE(growth.name);
      const std::string path = folder / "x.h5";
      on_mesh(sharded ? growth.mesh : std::vector<int64_t>{1}, [&](const MeshPtr& mesh) {
        File out = open(path, "w");
        int64_t begin = 0;
        for (const int64_t rows : steps) {
          if (rows == 4) {  // another run goes on
            out.close();
            out = open(path, "a");
          }
          const at::Tensor part = all.narrow(0, begin, rows);
          out.append("group/x", sharded ? shard_of(part, mesh, growth.placements) : part, growth.options);
          begin += rows;
        }
        out.close();
      });
      EXPECT_TRUE(at::equal(library_read(path, "group/x", all), all));
      EXPECT_TRUE(at::equal(open(path)["group/x"].read(), all));
    }
  }
}

/// Datasets of others: of the other byte order and with checksums (encoded here), lzf and scale-offset (through HDF5).
TEST(Append, FilesOfOthersGoOnInTheirWay) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor all = field({7, 6}), first = all.narrow(0, 0, 3);
  const auto make = [&](hid_t file, const char* name, hid_t type, const auto& filter) {
    const hsize_t shape[] = {3, 6}, most[] = {H5S_UNLIMITED, 6}, chunk[] = {2, 4};
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, shape, most);
    H5Pset_chunk(list, 2, chunk);
    filter(list);
    const hid_t id = H5Dcreate2(file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
    H5Dwrite(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, first.const_data_ptr());
    H5Dclose(id);
    H5Sclose(space);
    H5Pclose(list);
  };
  {
    const RawFile raw(path);
    make(raw.id(), "swapped", H5T_IEEE_F32BE, [](hid_t list) { H5Pset_shuffle(list), H5Pset_deflate(list, 4); });
    make(raw.id(), "sums", H5T_IEEE_F32LE, [](hid_t list) { H5Pset_deflate(list, 4), H5Pset_fletcher32(list); });
    make(raw.id(), "offset", H5T_IEEE_F32LE, [](hid_t list) { H5Pset_scaleoffset(list, H5Z_SO_FLOAT_DSCALE, 0); });
    make(raw.id(), "plain", H5T_IEEE_F32LE, [](hid_t) {});
  }
  on_mesh({2}, [&](const MeshPtr& mesh) {
    File out = open(path, "a");
    for (const char* name : {"swapped", "sums", "offset", "plain"})
      out.append(name, shard_of(all.narrow(0, 3, 4), mesh, {shard(1)}));
    out.close();
  });
  for (const char* name : {"swapped", "sums", "offset", "plain"})
    EXPECT_TRUE(at::equal(library_read(path, name, all), all)) << name;
  EXPECT_TRUE(at::equal(open(path)["swapped"].read(), all));
}

TEST(Append, RefusesOnEveryRankAlike) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = shard_of(field({4, 6}), mesh, {shard(1)});
    File out = open(path, "w");
    out.write("fixed", x);
    out.append("x", x, {.dims = {"time", "y"}});
    const std::string start = "append: dataset \"x\" of file \"" + path + "\": ";
    const std::vector<std::pair<std::function<void()>, std::string>> refused = {
        {[&] { out.append("fixed", x); }, "append: dataset \"fixed\" of file \"" + path + "\": it cannot grow"},
        {[&] { out.append("x", x.narrow(1, 0, 5)); }, start + "rows of another shape"},
        {[&] { out.append("x", x.sum(0)); }, start + "rows of another shape"},
        {[&] { out.append("x", x.to(at::kDouble)); }, start + "rows of another dtype"},
        {[&] {
           out.append("x", x, {.dims = {"y", "time"}});
         },
         start + "dims of another order or name than it has"},
        {[&] { out.append("x", x.sum()); }, start + "a tensor without dimensions has no rows"}};
    for (const auto& [call, expected] : refused) {
      const std::string message = message_of(call);
      EXPECT_EQ(first_line(message), expected);
      EXPECT_NE(message.find("\n  have  "), std::string::npos) << message;
      EXPECT_NE(message.find("\n  fix   "), std::string::npos) << message;
    }
    out.append("x", x);
    out.close();
  });
  EXPECT_TRUE(at::equal(open(path)["x"].read(), at::cat({field({4, 6}), field({4, 6})})));
}

/// Rows of which none has an element still count.
TEST(Append, RowsWithoutElements) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  for (const WriteOptions& options : {WriteOptions{}, {.chunks = {2, 3, 4}}, {.compression = 2}}) {
    on_mesh({3}, [&](const MeshPtr& mesh) {
      File out = open(path, "w");
      for (const int64_t rows : {2, 0, 3}) out.append("x", shard_of(field({rows, 0, 5}), mesh, {shard(2)}), options);
      for (const int64_t rows : {0, 2}) out.append("y", shard_of(field({rows, 3}), mesh, {shard(1)}));
      out.write("z", shard_of(field({0, 4}), mesh, {shard(1)}), {.chunks = {2, 2}, .compression = 1});
      out.close();
    });
    EXPECT_EQ(open(path)["x"].read().sizes(), at::IntArrayRef({5, 0, 5}));
    EXPECT_TRUE(at::equal(open(path)["y"].read(), field({2, 3})));
    EXPECT_EQ(open(path)["z"].read().sizes(), at::IntArrayRef({0, 4}));
  }
}

/// flush() leaves a whole file, should the program end now.
TEST(Flush, LeavesAWholeFileUnderItsUnfinishedName) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor full = field({6, 4});
  on_mesh({3}, [&](const MeshPtr& mesh) {
    File out = open(path, "w");
    const at::Tensor x = shard_of(full, mesh, {shard(0)});
    out.append("x", x, {.compression = 1});
    out.write("run", x);
    const std::string unfinished = out.flush();

    EXPECT_TRUE(unfinished.starts_with(path + ".unfinished-")) << unfinished;
    mesh->group().barrier();
    if (mesh->rank() == 0) {
      std::filesystem::copy_file(unfinished, folder / "crash.h5");
      EXPECT_TRUE(at::equal(open(folder / "crash.h5")["x"].read(), full));
      EXPECT_TRUE(at::equal(open(folder / "crash.h5")["run"].read(), full));
      EXPECT_FALSE(std::filesystem::exists(path));
    }
    out.append("x", x);
    out.close();
    EXPECT_EQ(first_line(message_of([&] { out.flush(); })), "flush: file \"" + path + "\": the file is closed");
  });
  EXPECT_TRUE(at::equal(open(path)["x"].read(), at::cat({full, full})));
}

/// A slice of the mesh that holds its first rank may write too; another may not.
TEST(ParallelWrite, TensorsOfSlicesOfTheMesh) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor full = field({8, 4});
  on_mesh({2, 2}, [&](const MeshPtr& mesh) {
    File out = open(path, "w");
    out.write("all", shard_of(full, mesh, {shard(0), shard(1)}));
    const MeshPtr slice = mesh->slice({"dim_1"});
    const at::Tensor x = shard_of(full, slice, {shard(0)});
    if (mesh->coordinate(0) == 0) {
      out.write("slice", x);
    } else {
      EXPECT_EQ(first_line(message_of([&] { out.write("slice", x); })),
                "write: dataset \"slice\" of file \"" + path + "\": another rank owns the file");
    }
    out.write("again", shard_of(full, mesh, {shard(0), shard(1)}));
    out.close();
  });
  for (const char* name : {"all", "slice", "again"}) EXPECT_TRUE(at::equal(open(path)[name].read(), full)) << name;
}

TEST(ParallelWrite, X16_AFullDiskUnderCompressedChunksHarmsNothing) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  { RawFile(path).floats("good", field({7, 9})); }
  on_mesh({3}, [&](const MeshPtr& mesh) {
    File out = open(path, "a");
    const at::Tensor x = shard_of(at::rand({300, 400}), mesh, {shard(1)});
    std::optional<FullDisk> disk;
    mesh->group().barrier();
    if (mesh->rank() == 0) disk.emplace(64 << 10);
    mesh->group().barrier();
    const std::string message = message_of([&] { out.write("x", x, {.chunks = {50, 400}, .compression = 1}); });
    mesh->group().barrier();
    disk.reset();

    EXPECT_EQ(first_line(message), "write: dataset \"x\" of file \"" + path + "\": cannot write it");
    EXPECT_NE(message.find("\n  have  File too large"), std::string::npos) << message;
    EXPECT_NE(message_of([&] { out.close(); }), "");
  });
  EXPECT_EQ(open(path).keys(), std::vector<std::string>{"good"});
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.h5"});
}

}  // namespace
}  // namespace moonhalo::io::test_parallel_write
