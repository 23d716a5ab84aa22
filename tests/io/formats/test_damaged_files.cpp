// SPDX-License-Identifier: Apache-2.0
// Files with flipped bytes: an error or wrong numbers, never the end of the program where libhdf5 leaves us a choice.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <random>

#include "moonhalo/io/fields/domain_file.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_damaged_files {
namespace {

using namespace testing;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Groups, attributes and datasets, in the newest format that HDF5 has; the same bytes at every call.
std::string make_file(const std::string& path) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  H5Pset_obj_track_times(creation, false);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  const hid_t links = H5Pcreate(H5P_LINK_CREATE), dataset = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_create_intermediate_group(links, 1);
  H5Pset_obj_track_times(dataset, false);
  for (int i = 0; i < 24; ++i) {
    const std::string name = (i % 3 ? "group" + std::to_string(i % 3) + "/" : "") + "field" + std::to_string(i);
    const hsize_t shape[] = {3, 4}, chunk[] = {2, 2};
    if (i % 2) {
      H5Pset_chunk(dataset, 2, chunk);
    } else {
      H5Pset_layout(dataset, H5D_CONTIGUOUS);
    }
    const hid_t space = H5Screate_simple(2, shape, nullptr);
    const hid_t id = H5Dcreate2(file, name.c_str(), H5T_IEEE_F32LE, space, links, dataset, H5P_DEFAULT);
    const std::vector<float> values(12, static_cast<float>(i));
    H5Dwrite(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    for (int j = 0; j < 12; ++j) {
      const hid_t one = H5Screate(H5S_SCALAR);
      const hid_t attribute =
          H5Acreate2(id, ("note" + std::to_string(j)).c_str(), H5T_NATIVE_INT, one, H5P_DEFAULT, H5P_DEFAULT);
      H5Awrite(attribute, H5T_NATIVE_INT, &j);
      H5Aclose(attribute);
      H5Sclose(one);
    }
    H5Dclose(id);
    H5Sclose(space);
  }
  for (const hid_t list : {access, creation, links, dataset}) H5Pclose(list);
  H5Fclose(file);
  return bytes_of(path);
}

void flip(std::string& bytes, uint32_t seed) {
  std::mt19937 random(seed);
  for (uint32_t count = 1 + random() % 16; count > 0; --count) {
    const size_t at = random() % bytes.size();
    bytes[at] = static_cast<char>(random() % 256);
  }
}

void list_all(const std::string& path) {
  const File file = open(path);
  for (const auto& name : file.datasets()) {
    const Dataset data = file[name];
    data.attrs();
    data.dims();
  }
}

/// Memory that is given out next holds no zeros and no valid pointers.
void fill_free_memory() {
  H5garbage_collect();  // HDF5 keeps lists of its own
  std::vector<void*> blocks;
  for (size_t size = 16; size <= 4096; size += 16) {
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(malloc(size));
      std::memset(blocks.back(), 0x5a, size);
    }
  }
  for (void* block : blocks) free(block);
}

/// Returns how a process that lists the file ends: 0, or the signal that ended it.
int listing_ends_with(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    fill_free_memory();
    try {
      list_all(path);
    } catch (const std::exception&) {
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(DamagedFiles, AreListedWithoutACrash) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const std::string good = make_file(path);
  list_all(path);
  for (uint32_t seed = 0; seed < 60; ++seed) {  // 16, 40, 44, 45, 56 crash where HDF5 1.10 sorts links
    std::string bytes = good;
    flip(bytes, seed);
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(listing_ends_with(path), 0) << "seed " << seed;
  }
}

/// Nothing of it was ever written: the file has some kB.
TEST(DamagedFiles, X16_ClaimsOfMoreThanThereIsAreErrors) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  {
    RawFile file(path);
    file.dataset("chunks", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {hsize_t{1} << 30, 1 << 20}, nullptr,
                 {.chunks = {1024, 256}});
    file.dataset("contiguous", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {hsize_t{1} << 50}, nullptr);
    file.dataset("beyond", H5T_STD_I8LE, H5T_NATIVE_CHAR, {hsize_t{1} << 40, hsize_t{1} << 40}, nullptr,
                 {.chunks = {16, 16}});
  }
  const File file = open(path);
  for (const auto& [name, size] :
       {std::pair("chunks", "4.0 PiB"), {"contiguous", "8.0 PiB"}, {"beyond", "1048576.0 EiB"}}) {
    const std::string message = testing::message_of([&] { file[name].read(); });

    EXPECT_EQ(testing::first_line(message), "read: dataset \"" + std::string(name) + "\" of file \"" + path +
                                                "\": its " + size + " do not fit into memory");
    EXPECT_NE(message.find(" available\n  fix   read a part of it"), std::string::npos) << message;
  }
  EXPECT_TRUE(at::equal(file["chunks"]["7, 5:8"].read(), at::zeros({3})));
}

std::string replaced(std::string bytes, const std::string& from, const std::string& to) {
  size_t count = 0;
  for (size_t at = 0; (at = bytes.find(from, at)) != std::string::npos; at += to.size(), ++count)
    bytes.replace(at, from.size(), to);
  EXPECT_GT(count, 0u) << "no such bytes in the file";
  return bytes;
}

/// Numbers as HDF5 stores them.
std::string little_endian(const std::vector<uint32_t>& numbers, int bytes) {
  std::string text;
  for (const uint32_t number : numbers) {
    for (int i = 0; i < bytes; ++i) text.push_back(i < 4 ? static_cast<char>(number >> (8 * i)) : '\0');
  }
  return text;
}

/// libhdf5 reads memory behind such a chunk or run, and gives what it finds there as numbers.
TEST(DamagedFiles, X16_ShapesThatDoNotFitTheirBytesAreErrors) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const at::Tensor run = at::arange(1237), field = at::arange(37 * 11).reshape({37, 11});
  {
    RawFile file(path);
    file.floats("compact", run, {.compact = true});
    file.floats("contiguous", run);
    file.floats("chunks", field, {.chunks = {5, 7}, .gzip = 1});
  }
  const std::string good = bytes_of(path);
  EXPECT_TRUE(at::equal(open(path)["compact"].read(), run.to(at::kFloat)));

  const std::string longer = replaced(good, little_endian({1237}, 8), little_endian({1290}, 8));
  std::ofstream(path, std::ios::binary) << replaced(longer, little_endian({5, 7, 4}, 4), little_endian({5, 128, 4}, 4));

  const File file = open(path);
  for (const auto& [name, why] : {std::pair("compact", "it has 4948 bytes, too few for shape [1290] of float32"),
                                  {"contiguous", "it has 4948 bytes, too few for shape [1290] of float32"},
                                  {"chunks", "chunks of [5, 128] are larger than its shape [37, 11]"}}) {
    const std::string message = testing::message_of([&] { file[name].read(); });

    EXPECT_EQ(testing::first_line(message),
              "read: dataset \"" + std::string(name) + "\" of file \"" + path + "\": damaged, cannot be read");
    EXPECT_NE(message.find(std::string("\n  have  ") + why), std::string::npos) << message;
  }
}

/// libhdf5 1.10 never comes back from the first of these, and reads what is behind the heap in the others.
TEST(DamagedFiles, HeapsThatHoldHdf5AreErrors) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  const std::vector<std::string> texts{std::string(40, 'a'), std::string(5000, 'b'), std::string(90, 'c')};
  {
    File file = open(path, "w");
    file.set_attr("texts", texts);
    file.close();
  }
  const std::string good = bytes_of(path);
  EXPECT_EQ(std::get<std::vector<std::string>>(open(path).attrs().at("texts")), texts);

  const auto heap_of = [&](const std::string& text) { return good.rfind("GCOL", good.find(text)); };
  const auto listed = [&](size_t object, uint32_t index, uint64_t size) {
    std::string bytes = good;
    bytes.replace(object, 2, little_endian({index}, 2));
    std::memcpy(bytes.data() + object + 8, &size, sizeof size);
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(listing_ends_with(path), 0);
    return message_of([&] { open(path).attrs(); });
  };
  // The first object of a heap, one that is behind the 4096 bytes that HDF5 reads first, the unused rest of a
  // heap.
  const size_t first = heap_of(texts[0]) + 16, late = good.find(texts[1]) + 5000, rest = good.find(texts[0]) + 40;
  ASSERT_GT(late - heap_of(texts[1]), 4096u);
  const std::string unused = "is unused and has no size", beyond = "reaches beyond it";
  for (const auto& [object, index, size, why] : {std::tuple{first, 0u, uint64_t{0}, unused},
                                                 {late, 0u, uint64_t{0}, unused},
                                                 {first, 1u, uint64_t{60000}, beyond},
                                                 {first, 1u, ~uint64_t{0} - 16, beyond},
                                                 {late, 2u, uint64_t{1} << 40, beyond},
                                                 {rest, 0u, uint64_t{1} << 20, beyond}}) {
    const size_t heap = good.rfind("GCOL", object);
    const std::string message = listed(object, index, size);

    EXPECT_EQ(first_line(message), "attrs: object \"/\" of file \"" + path + "\": cannot read its text");
    EXPECT_NE(message.find("  have  the global heap at byte " + std::to_string(heap) +
                           " is damaged: its object at byte " + std::to_string(object) + " " + why),
              std::string::npos)
        << message;
  }
}

/// Lists of something else than references have no eight bytes an element to follow.
TEST(DamagedFiles, DimensionListsOfOtherTypesNameNothing) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  {
    RawFile file(path);
    int8_t one = 7;
    for (const auto& [name, element] : {std::pair("bytes", H5T_STD_I8LE), {"regions", H5T_STD_REF_DSETREG}}) {
      file.floats(name, at::zeros({3}));
      const hid_t type = H5Tvlen_create(element), dataset = H5Dopen2(file.id(), name, H5P_DEFAULT);
      const hsize_t count = 1;
      const hid_t space = H5Screate_simple(1, &count, nullptr);
      const hid_t list = H5Acreate2(dataset, "DIMENSION_LIST", type, space, H5P_DEFAULT, H5P_DEFAULT);
      hvl_t values = {element == H5T_STD_I8LE ? size_t{1} : 0, &one};
      ASSERT_GE(H5Awrite(list, type, &values), 0);
      H5Aclose(list);
      H5Sclose(space);
      H5Dclose(dataset);
      H5Tclose(type);
    }
  }
  EXPECT_EQ(open(path)["bytes"].dims(), std::vector<std::string>{""});
  EXPECT_EQ(open(path)["regions"].dims(), std::vector<std::string>{""});
}

int64_t virtual_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmPeak:")) return std::stoll(line.substr(7)) << 10;
  }
  return 0;
}

/// The index of chunks says that one has almost 4 GiB: no memory is asked for what the file cannot hold.
TEST(DamagedFiles, X16_ChunksThatAreLargerThanTheFileGetNoMemory) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  { RawFile(path).floats("x", field({40, 30}), {.chunks = {20, 30}, .gzip = 1}); }
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), x = H5Dopen2(file, "x", H5P_DEFAULT);
  const hsize_t corner[] = {20, 0};
  hsize_t bytes = 0;
  haddr_t address = 0;
  unsigned skipped = 0;
  ASSERT_GE(H5Dget_chunk_info_by_coord(x, corner, &skipped, &address, &bytes), 0);
  H5Dclose(x);
  H5Fclose(file);
  // A key of the index: bytes, codecs that were skipped, corner.
  const std::string place = little_endian({20, 0, 0}, 8), mask = little_endian({0}, 4);
  const std::string key = little_endian({static_cast<uint32_t>(bytes)}, 4) + mask + place;
  const std::string claimed = replaced(bytes_of(path), key, little_endian({0xfffffff0u}, 4) + mask + place);
  std::ofstream(path, std::ios::binary) << claimed;

  const int64_t before = virtual_peak();
  const std::string message = message_of([&] { open(path)["x"].read(); });

  EXPECT_LT(virtual_peak() - before, int64_t{1} << 30);
  EXPECT_EQ(first_line(message), "read: dataset \"x\" of file \"" + path + "\": chunk [1, 0] is damaged");
  EXPECT_NE(
      message.find("its 4294967280 bytes at " + std::to_string(address) + " reach beyond the end of the file at "),
      std::string::npos)
      << message;
  EXPECT_TRUE(at::equal(open(path)["x"]["0:20, :"].read(), field({40, 30}).narrow(0, 0, 20)));
}

/// HDF5 allows it: three ways back to the root, which would be 3^16 groups.
TEST(DamagedFiles, GroupsThatLieWithinThemselvesAreListedOnce) {
  const Folder folder;
  const std::string path = folder / "loops.h5";
  {
    RawFile file(path);
    file.floats("x", at::ones({2}));
  }
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Gclose(H5Gcreate2(file, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  for (const char* link : {"a", "b", "inner/c"}) H5Lcreate_hard(file, "/", file, link, H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_hard(file, "/x", file, "inner/y", H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);

  EXPECT_EQ(open(path).datasets(), (std::vector<std::string>{"inner/y", "x"}));
}

}  // namespace
}  // namespace moonhalo::io::test_damaged_files
