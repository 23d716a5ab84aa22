// SPDX-License-Identifier: Apache-2.0
// Compressed chunks: what is decoded here must be what H5Dread reads, bit by bit, on any number of ranks.
#include <gtest/gtest.h>

#include <atomic>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/codecs/lzf.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/read_together.h"
#include "moonhalo/io/fields/reader.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/io/support/lzf_stream.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_chunks {
namespace {

using namespace testing;

/// A dataset [7, 9, 10] of chunks that its shape does not fill.
struct ChunkCase {
  const char* name;
  std::vector<hsize_t> chunk;
  std::vector<H5Z_filter_t> filters;
  hid_t stored = H5T_IEEE_F32LE;
  bool sparse = false;  // some chunks are never written
  bool latest = false;
};

constexpr H5Z_filter_t kGzip = H5Z_FILTER_DEFLATE, kShuffle = H5Z_FILTER_SHUFFLE, kSum = H5Z_FILTER_FLETCHER32;

const std::vector<ChunkCase>& cases() {
  static const std::vector<ChunkCase> all = {
      {"gzip", {2, 4, 3}, {kGzip}},
      {"steps", {1, 9, 10}, {kShuffle, kGzip}},
      {"one_chunk", {7, 9, 10}, {kShuffle, kGzip, kSum}},
      {"shuffle", {3, 5, 10}, {kShuffle}},
      {"sum", {3, 5, 10}, {kSum}},
      {"sum_first", {2, 9, 4}, {kSum, kShuffle, kGzip}},
      {"big_endian", {2, 4, 3}, {kShuffle, kGzip}, H5T_IEEE_F32BE},
      {"doubles", {1, 9, 10}, {kShuffle, kGzip}, H5T_IEEE_F64BE},
      {"shorts", {1, 9, 10}, {kShuffle, kGzip}, H5T_STD_I16LE},
      {"unsigned_big", {4, 4, 4}, {kGzip}, H5T_STD_U16BE},
      {"bytes", {1, 9, 10}, {kShuffle, kGzip}, H5T_STD_I8LE},
      {"sparse", {1, 9, 10}, {kShuffle, kGzip}, H5T_IEEE_F32LE, true},
      {"sparse_big_endian", {2, 4, 10}, {kGzip}, H5T_STD_I32BE, true},
      {"latest", {1, 9, 10}, {kShuffle, kGzip}, H5T_IEEE_F32LE, false, true},
      {"latest_one", {7, 9, 10}, {kGzip}, H5T_IEEE_F64LE, false, true},
  };
  return all;
}

const std::vector<int64_t> kShape = {7, 9, 10};

void make_dataset(hid_t file, const ChunkCase& c) {
  const hsize_t shape[] = {7, 9, 10}, most[] = {H5S_UNLIMITED, 9, 10};
  const hid_t space = H5Screate_simple(3, shape, c.sparse ? most : nullptr), list = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(list, 3, c.chunk.data());
  for (const H5Z_filter_t filter : c.filters) {
    if (filter == kGzip) H5Pset_deflate(list, 4);
    if (filter == kShuffle) H5Pset_shuffle(list);
    if (filter == kSum) H5Pset_fletcher32(list);
  }
  const double fill = 77;
  H5Pset_fill_value(list, H5T_NATIVE_DOUBLE, &fill);
  const hid_t id = H5Dcreate2(file, c.name, c.stored, space, H5P_DEFAULT, list, H5P_DEFAULT);
  const at::Tensor data = at::arange(7 * 9 * 10, at::kDouble).remainder(113);
  if (c.sparse) {
    const hsize_t begin[] = {2, 0, 0}, count[] = {3, 3, 10};
    H5Sselect_hyperslab(space, H5S_SELECT_SET, begin, nullptr, count, nullptr);
  }
  const hid_t memory = H5Scopy(space);
  ASSERT_GE(H5Dwrite(id, H5T_NATIVE_DOUBLE, memory, space, H5P_DEFAULT, data.const_data_ptr()), 0);
  for (const hid_t open : {space, memory}) H5Sclose(open);
  H5Pclose(list);
  H5Dclose(id);
}

/// Returns what H5Dread gives, converted by the library to doubles.
at::Tensor by_library(const std::string& path, const std::string& name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), id = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  const at::Tensor out = at::empty(kShape, at::kDouble);
  EXPECT_GE(H5Dread(id, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.mutable_data_ptr()), 0);
  H5Dclose(id);
  H5Fclose(file);
  return out;
}

std::string make_file(const Folder& folder, const ChunkCase& c) {
  const std::string path = folder / (std::string(c.name) + ".h5");
  const RawFile file(path, 0, c.latest);
  make_dataset(file.id(), c);
  return path;
}

TEST(Chunks, AreDecodedToWhatH5DreadReads) {
  const Folder folder;
  for (const auto& c : cases()) {
    const std::string path = make_file(folder, c);
    const at::Tensor whole = by_library(path, c.name);
    const Dataset data = open(path)[c.name];
    const std::vector<std::pair<const char*, at::Tensor>> parts = {
        {"...", whole},
        {"2:5", whole.slice(0, 2, 5)},
        {"1:7:2, 3, ::4", whole.slice(0, 1, 7, 2).select(1, 3).slice(1, 0, 10, 4)},
        {"-1, :, 2:9", whole.select(0, 6).slice(1, 2, 9)},
        {"::5, ::5, ::6", whole.slice(0, 0, 7, 5).slice(1, 0, 9, 5).slice(2, 0, 10, 6)},
        {"3:3", whole.slice(0, 3, 3)},
        {"6, 8, 9", whole[6][8][9]}};
    for (const auto& [slices, expected] : parts) {
      SCOPED_TRACE(std::string(c.name) + "[" + slices + "]");
      const int64_t before = io_stats().library, seen = bytes_read();

      const at::Tensor read = data[slices].read();

      EXPECT_EQ(read.scalar_type(), data.dtype());
      EXPECT_TRUE(at::equal(read.to(at::kDouble), expected)) << read.to(at::kDouble) << expected;
      EXPECT_EQ(bytes_read() - seen, read.numel() * static_cast<int64_t>(read.element_size()));
      EXPECT_TRUE(at::equal(data[slices].read({.dtype = at::kDouble}), expected));
      EXPECT_TRUE(at::equal(data[slices].read({.dtype = at::kHalf}), expected.to(at::kHalf)));
      EXPECT_EQ(io_stats().library, before) << "H5Dread was called";
    }
  }
}

hsize_t written_chunks(const std::string& path, const std::string& name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), id = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  const hid_t space = H5Dget_space(id);
  hsize_t count = 0;
  EXPECT_GE(H5Dget_num_chunks(id, space, &count), 0);
  H5Sclose(space);
  H5Dclose(id);
  H5Fclose(file);
  return count;
}

const testing::Placed cuts[] = {{{1}, {shard(0)}},
                                {{2}, {shard(0)}},
                                {{2}, {shard(1, {7, 2})}},
                                {{3}, {shard(2)}},
                                {{3}, {replicate()}},
                                {{4}, {shard(1)}},
                                {{4}, {shard(0, {0, 5, 1, 1})}},
                                {{2, 2}, {shard(1), shard(2, {3, 7})}},
                                {{2, 2}, {replicate(), shard(2)}},
                                {{2, 2}, {shard(0), shard(0)}}};

/// Row S18: the same blocks whichever rank decoded the chunks, and no chunk is decoded twice by a shared plan.
TEST(Chunks, S18BlocksAreTheSameOnAnyNumberOfRanks) {
  const Folder folder;
  for (const auto& c : cases()) {
    const std::string path = make_file(folder, c);
    const at::Tensor whole = by_library(path, c.name);
    for (const testing::Placed& cut : cuts) {
      SCOPED_TRACE(c.name);
      const auto written = static_cast<int64_t>(written_chunks(path, c.name));
      std::atomic<int64_t> decoded{0};
      std::atomic<bool> shared{false};
      on_mesh(cut.mesh, [&](const MeshPtr& mesh) {
        const Dataset data = open(path)[c.name];
        const SpecPtr spec = make_spec(mesh, kShape, cut.placements);
        const at::Tensor expected = to_local(distribute_tensor(whole, mesh, cut.placements));
        const IoPlan plan(chunk_grid(*data.info().map, io::whole(kShape)), data.info().element_size, spec);
        const IoStats before = io_stats();

        const at::Tensor x = to_local(scatter_tensor(data, mesh, cut.placements));

        EXPECT_TRUE(at::equal(x.to(at::kDouble), expected));
        EXPECT_EQ(x.scalar_type(), data.dtype());
        EXPECT_EQ(io_stats().library, before.library);
        decoded += io_stats().chunks - before.chunks;
        shared = plan.shared();
      });
      if (shared) EXPECT_EQ(decoded, written);
    }
  }
}

TEST(Chunks, S18SelectionsDtypesAndHalosOnRanks) {
  const Folder folder;
  const std::string path = make_file(folder, cases()[1]);
  File add = open(path, "a");
  add.set_attr("scale_factor", 0.5, "steps");
  add.close();
  const at::Tensor whole = by_library(path, "steps");
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const Dataset data = open(path)["steps"];
    const int64_t before = io_stats().library;

    const at::Tensor part = scatter_tensor(data["1:6:2, :, 3"], mesh, {shard(1)}, {.dtype = at::kDouble});
    EXPECT_TRUE(at::equal(full_tensor(part), whole.slice(0, 1, 6, 2).select(2, 3)));
    const at::Tensor decoded = scatter_tensor(data, mesh, {shard(2)}, {.decode = true});
    EXPECT_EQ(decoded.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(full_tensor(decoded), (whole * 0.5).to(at::kFloat)));
    const at::Tensor halves = scatter_tensor(data, mesh, {shard(2)}, {.dtype = at::kHalf, .decode = true});
    EXPECT_TRUE(at::equal(full_tensor(halves), (whole * 0.5).to(at::kHalf)));

    const SpecPtr spec = make_spec(mesh, {7, 9, 10}, {shard(1, {4, 1, 4})});
    const at::Tensor block = read_together(data, spec, {}, {.lo = {0, 2, 0}, .hi = {9, 1, 9}});
    const std::vector<std::pair<int64_t, int64_t>> rows = {{0, 5}, {2, 6}, {3, 9}};
    const auto [begin, end] = rows[static_cast<size_t>(mesh->rank())];
    EXPECT_TRUE(at::equal(block.to(at::kDouble), whole.slice(1, begin, end)));
    EXPECT_EQ(io_stats().library, before);

    const at::Tensor integers = scatter_tensor(data, mesh, {shard(1)}, {.dtype = at::kInt});  // what may not fit
    EXPECT_TRUE(at::equal(full_tensor(integers), whole.to(at::kInt)));
    EXPECT_GT(io_stats().library, before);
  });
}

/// 60 MiB of whole steps: more than a round holds.
TEST(Chunks, X11RoundsGiveTheWhole) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor whole = at::arange(30 * 1024 * 512, at::kFloat).remainder(1009).view({30, 1024, 512});
  { RawFile(path).floats("x", whole, {.chunks = {1, 1024, 512}, .gzip = 1}); }
  std::atomic<int64_t> inflated{0}, received{0};
  on_mesh({4}, [&](const MeshPtr& mesh) {
    const IoStats before = io_stats();

    const at::Tensor x = to_local(scatter_tensor(open(path)["x"], mesh, {shard(2, {200, 100, 12, 200})}));

    EXPECT_TRUE(at::equal(x, to_local(distribute_tensor(whole, mesh, {shard(2, {200, 100, 12, 200})}))));
    inflated += io_stats().inflated - before.inflated;
    received += io_stats().exchanged - before.exchanged;
  });
  EXPECT_EQ(inflated, whole.numel() * 4);
  EXPECT_GT(received, whole.numel() * 2);
  EXPECT_LT(received, whole.numel() * 4);
}

TEST(Chunks, WithUnusualLayoutsStayWithHDF5) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor whole = at::arange(60, at::kFloat).view({6, 10});
  {
    RawFile raw(path, 512);  // a user block
    raw.floats("gzip", whole, {.chunks = {4, 5}, .gzip = 1});
  }
  const std::string plain = folder / "plain.h5";
  {
    RawFile raw(plain);
    raw.floats("chunks", whole, {.chunks = {4, 5}});
    const hsize_t shape[] = {6, 10}, chunk[] = {4, 5};
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, shape, nullptr);
    H5Pset_chunk(list, 2, chunk);
    H5Pset_chunk_opts(list, H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS);
    H5Pset_deflate(list, 1);
    const hid_t id = H5Dcreate2(raw.id(), "raw_ends", H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    ASSERT_GE(H5Dwrite(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, whole.const_data_ptr()), 0);
    H5Dclose(id);
    H5Sclose(space);
    H5Pclose(list);
  }
  for (const auto& [file, name] : {std::pair(path, "gzip"), {plain, "chunks"}, {plain, "raw_ends"}}) {
    SCOPED_TRACE(name);
    EXPECT_FALSE(Reader::decodes(*open(file).state(), open(file)[name].info()));
    on_mesh({2}, [&](const MeshPtr& mesh) {
      EXPECT_TRUE(at::equal(full_tensor(scatter_tensor(open(file)[name], mesh, {shard(1)})), whole));
    });
  }
  File out = open(folder / "out.h5", "w");  // chunks of a file being written may be in HDF5's memory
  out.write("x", whole, {.compression = 1});
  EXPECT_TRUE(at::equal(out["x"].read(), whole));
}

/// A chunk as stored: `bytes` of it put in its place by hand.
void write_chunk(hid_t file, const char* name, hsize_t row, const std::string& bytes, uint32_t mask) {
  const hid_t id = H5Dopen2(file, name, H5P_DEFAULT);
  const hsize_t offset[] = {row, 0};
  ASSERT_GE(H5Dwrite_chunk(id, H5P_DEFAULT, mask, offset, bytes.size(), bytes.data()), 0);
  H5Dclose(id);
}

std::string raw_bytes(const at::Tensor& data) {
  return {static_cast<const char*>(data.const_data_ptr()), static_cast<size_t>(data.nbytes())};
}

/// Two-dimensional chunks of [4, 8] floats whose stored bytes the test chooses; [8, 8] in all.
void chunks_by_hand(const std::string& path, const std::vector<H5Z_filter_t>& filters,
                    const std::vector<std::pair<std::string, uint32_t>>& stored) {
  const RawFile raw(path);
  const hsize_t shape[] = {8, 8}, chunk[] = {4, 8};
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, shape, nullptr);
  H5Pset_chunk(list, 2, chunk);
  for (const H5Z_filter_t filter : filters) {
    if (filter == kShuffle) {
      H5Pset_shuffle(list);  // the filter's own numbers are filled in by HDF5
    } else {
      const unsigned values[] = {4, 261, 4 * 8 * 4};  // as h5py gives them to lzf
      H5Pset_filter(list, filter, H5Z_FLAG_OPTIONAL, filter == kLzfFilter ? 3 : 0, values);
    }
  }
  H5Dclose(H5Dcreate2(raw.id(), "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
  H5Sclose(space);
  H5Pclose(list);
  for (size_t i = 0; i < stored.size(); ++i) write_chunk(raw.id(), "x", 4 * i, stored[i].first, stored[i].second);
}

TEST(Chunks, FiltersThatAChunkSkippedAndLzf) {
  const Folder folder;
  const at::Tensor whole = at::arange(64, at::kFloat).view({8, 8});
  const std::string upper = raw_bytes(whole.slice(0, 0, 4)), lower = raw_bytes(whole.slice(0, 4, 8));
  chunks_by_hand(folder / "mask.h5", {kGzip}, {{upper, 1}, {lower, 1}});
  chunks_by_hand(folder / "lzf.h5", {kLzfFilter}, {{lzf_stream(upper), 0}, {lower, 1}});
  for (const char* name : {"mask.h5", "lzf.h5"}) {
    SCOPED_TRACE(name);
    const Dataset data = open(folder / name)["x"];
    const int64_t before = io_stats().library;
    EXPECT_TRUE(at::equal(data.read(), whole));
    EXPECT_EQ(io_stats().library, before);
    EXPECT_TRUE(at::equal(data.read({.dtype = at::kInt}), whole.to(at::kInt)));  // by H5Dread, lzf too
    EXPECT_GT(io_stats().library, before);
  }
}

/// The same words on every rank, whichever read the chunk, and whether one rank decodes it or all do.
TEST(Chunks, X16_DamageIsAnErrorThatNamesTheChunk) {
  const Folder folder;
  const at::Tensor whole = at::arange(64, at::kFloat).view({8, 8});
  const std::string upper = raw_bytes(whole.slice(0, 0, 4)), lower = raw_bytes(whole.slice(0, 4, 8));
  struct Case {
    const char* name;
    std::vector<H5Z_filter_t> filters;
    std::string stored;
    uint32_t mask;
    std::string have;
  };
  const std::vector<Case> damaged = {
      {"short_lzf",
       {kLzfFilter},
       lzf_stream(lower).substr(0, 60),
       0,
       "its 60 stored bytes are not an lzf stream of 128"},
      {"less_lzf",
       {kLzfFilter},
       lzf_stream(lower.substr(0, 96)),
       0,
       "its " + std::to_string(lzf_stream(lower.substr(0, 96)).size()) + " stored bytes are not an lzf stream of 128"},
      {"no_gzip", {kGzip}, "nonsense", 0, "its 8 stored bytes are not a whole gzip stream"},
      {"less_than_a_chunk", {kGzip}, lower.substr(0, 100), 1, "its 100 stored bytes are all there is, not 128"},
      {"more_than_a_chunk", {kShuffle}, lower + "1234", 1, "its 132 stored bytes are all there is, not 128"},
      {"sum", {kSum}, lower + "1234", 0, "its Fletcher32 checksum does not match its bytes"},
  };
  for (const auto& c : damaged) {
    SCOPED_TRACE(c.name);
    const std::string path = folder / c.name;
    chunks_by_hand(path, c.filters, {{upper, 1}, {c.stored, c.mask}});
    const std::string message = "read: dataset \"x\" of file \"" + path + "\": chunk [1, 0] is damaged\n  have  " +
                                c.have + "\n  fix   take another copy of the file, or write it again";
    EXPECT_EQ(message_of([&] { open(path)["x"].read(); }), message);
    EXPECT_TRUE(at::equal(open(path)["x"][":4"].read(), whole.slice(0, 0, 4)));
    for (const int64_t dim : {0, 1}) {  // direct, shared
      on_mesh({3}, [&](const MeshPtr& mesh) {
        const std::string said = message_of([&] { scatter_tensor(open(path)["x"], mesh, {shard(dim)}); });
        EXPECT_EQ(said.substr(0, said.find("\n  rank")), message);
        EXPECT_EQ(mesh->group().all_gather_strings(said), std::vector<std::string>(3, said));
      });
    }
  }
  const std::string path = folder / "cut.h5";
  chunks_by_hand(path, {kSum}, {{upper, 1}, {lower, 1}});
  const File file = open(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 7);
  const std::string message = message_of([&] { file["x"].read(); });
  EXPECT_EQ(first_line(message), "read: dataset \"x\" of file \"" + path + "\": chunk [1, 0] is damaged");
  EXPECT_NE(message.find(" reach beyond the end of the file at "), std::string::npos) << message;
}

/// A dataset of the newest format, whose index of chunks depends on its largest shape.
struct GrowingCase {
  const char* name;
  std::vector<hsize_t> shape, most, chunk;
  bool early = false;  // space for all chunks from the start, and no filter
};

constexpr hsize_t kAny = H5S_UNLIMITED;
const GrowingCase growing[] = {{"rows", {13, 8}, {kAny, 8}, {4, 3}},
                               {"rows_of_more", {13, 8}, {kAny, 20}, {4, 3}},
                               {"columns", {13, 13}, {13, kAny}, {7, 4}},
                               {"middle", {5, 9, 7}, {5, kAny, 7}, {2, 3, 3}},
                               {"middle_of_more", {5, 9, 7}, {8, kAny, 12}, {2, 3, 3}},
                               {"both", {13, 13}, {kAny, kAny}, {4, 4}},
                               {"fixed", {8, 8}, {8, 8}, {3, 3}},
                               {"fixed_of_more", {8, 8}, {20, 20}, {3, 3}},
                               {"early", {8, 8}, {8, 8}, {3, 3}, true},
                               {"early_of_more", {8, 8}, {8, 20}, {3, 3}, true}};

at::Tensor values_of(const GrowingCase& c) { return field(std::vector<int64_t>(c.shape.begin(), c.shape.end())); }

void make_growing(const std::string& path) {
  RawFile raw(path, 0, /*latest=*/true);
  for (const GrowingCase& c : growing) {
    const auto ndim = static_cast<int>(c.shape.size());
    const hid_t space = H5Screate_simple(ndim, c.shape.data(), c.most.data()), list = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(list, ndim, c.chunk.data());
    if (c.early) {
      H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
    } else {
      H5Pset_deflate(list, 1);
    }
    const hid_t id = H5Dcreate2(raw.id(), c.name, H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    const at::Tensor values = values_of(c);
    ASSERT_GE(H5Dwrite(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.const_data_ptr()), 0);
    H5Dclose(id);
    H5Pclose(list);
    H5Sclose(space);
  }
}

/// HDF5 1.10 takes chunks of columns that grow for others, or for chunks that were never written.
TEST(Chunks, S18AreFoundWhateverTheLargestShape) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  make_growing(path);
  for (const GrowingCase& c : growing) {
    SCOPED_TRACE(c.name);
    const at::Tensor values = values_of(c);
    EXPECT_TRUE(at::equal(open(path)[c.name].read(), values));
    for (int64_t dim = 0; dim < values.dim(); ++dim) {
      on_mesh({3}, [&](const MeshPtr& mesh) {
        EXPECT_TRUE(at::equal(full_tensor(scatter_tensor(open(path)[c.name], mesh, {shard(dim)})), values));
      });
    }
  }
  for (const char* const name : {"rows", "rows_of_more", "both"}) {
    SCOPED_TRACE(name);
    const at::Tensor before = open(path)[name].read();
    on_mesh({2}, [&](const MeshPtr& mesh) {
      File out = open(path, "a");
      out.append(name, shard_of(before.narrow(0, 2, 6) + 1, mesh, {shard(1)}));
      out.close();
    });
    EXPECT_TRUE(at::equal(open(path)[name].read(), at::cat({before, before.narrow(0, 2, 6) + 1})));
  }
  for (const GrowingCase& c : growing) {  // what was not written to is as it was
    const at::Tensor values = values_of(c), now = open(path)[c.name].read();
    EXPECT_TRUE(at::equal(now.narrow(0, 0, values.size(0)), values)) << c.name;
  }
}

}  // namespace
}  // namespace moonhalo::io::test_chunks
