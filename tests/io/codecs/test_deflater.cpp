// SPDX-License-Identifier: Apache-2.0
// Streams against what libdeflate alone makes, and what HDF5's own filter (zlib) reads of them.
#include <gtest/gtest.h>
#include <libdeflate.h>

#include <functional>
#include <random>

#include "moonhalo/io/codecs/deflater.h"
#include "tests/io/support/raw_file.h"

namespace moonhalo::io::test_deflater {
namespace {

constexpr int kLevelOfTest = 4;

std::string deflated_here(const std::string& data) {
  std::string stream(data.size(), '\0');
  stream.resize(Deflater(kLevelOfTest).deflate(data.data(), data.size(), stream.data(), stream.size()));
  return stream;
}

std::string deflated_by_libdeflate(const std::string& data) {
  libdeflate_compressor* compressor = libdeflate_alloc_compressor(kLevelOfTest);
  std::string stream(data.size(), '\0');
  stream.resize(libdeflate_zlib_compress(compressor, data.data(), data.size(), stream.data(), stream.size()));
  libdeflate_free_compressor(compressor);
  return stream;
}

/// Returns what HDF5 reads of a chunk that is this stream.
std::string inflated_by_hdf5(const std::string& path, const std::string& stream, size_t bytes) {
  const hsize_t count = bytes, zero = 0;
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &count, nullptr);
  H5Pset_chunk(list, 1, &count);
  H5Pset_deflate(list, kLevelOfTest);
  const hid_t id = H5Dcreate2(file, "x", H5T_NATIVE_UINT8, space, H5P_DEFAULT, list, H5P_DEFAULT);
  H5Dwrite_chunk(id, H5P_DEFAULT, 0, &zero, stream.size(), stream.data());
  std::string data(bytes, '\0');
  if (H5Dread(id, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) < 0) data = "HDF5 cannot read it";
  H5Dclose(id);
  H5Sclose(space);
  H5Pclose(list);
  H5Fclose(file);
  return data;
}

std::string noise(size_t bytes, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::string data(bytes, '\0');
  for (char& byte : data) byte = static_cast<char>(random() >> 24);
  return data;
}

std::string made_of(size_t bytes, const std::function<int(size_t)>& byte) {
  std::string data(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(byte(i));
  return data;
}

bool begins_stored(const std::string& stream) { return stream.size() > 2 && (stream[2] & 6) == 0; }

struct DeflateCase {
  const char* name;
  std::string data;
  bool stored;  // its first bytes are noise, which no search for matches is worth
};

std::vector<DeflateCase> deflate_cases() {
  const auto slow = [](size_t i) { return static_cast<int>(i / 300); };
  const std::string smooth = made_of(300000, slow), row = noise(20000), block = noise(3000);
  std::string rows, near, uneven = noise(1 << 18);
  while (rows.size() < 400000) rows += row;
  while (near.size() < 100000) near += block;
  for (size_t i = 0; i < uneven.size(); i += 2) uneven[i] = static_cast<char>(uneven[i] & 0x3f);
  return {{"noise, then none: two planes of floats", noise(1 << 19) + smooth, true},
          {"noise that ends anywhere", noise(123457) + smooth, true},
          {"a block of stored bytes, and one byte more", noise(65536 + 32768) + smooth, true},
          {"noise that fills no piece", noise(9000) + smooth, false},
          {"noise last", smooth + noise(1 << 18), false},
          {"rows of noise that repeat", rows, false},
          {"noise, then rows that repeat", noise(200000, 7) + rows, true},
          {"noise that repeats within a piece", near, false},
          {"every byte as often, in order", made_of(1 << 18, [](size_t i) { return static_cast<int>(i); }), false},
          {"half of the bytes have six bits", uneven, false},
          {"short", std::string(100, 's') + "hort", false}};
}

TEST(Deflater, NoiseInFrontIsStoredAndTheRestIsAsSmallAsLibdeflateMakesIt) {
  const testing::Folder folder;
  for (const DeflateCase& c : deflate_cases()) {
    SCOPED_TRACE(c.name);

    const std::string stream = deflated_here(c.data);

    EXPECT_EQ(begins_stored(stream), c.stored);
    EXPECT_LE(static_cast<double>(stream.size()), 1.005 * static_cast<double>(deflated_by_libdeflate(c.data).size()));
    EXPECT_EQ(inflated_by_hdf5(folder / "chunk.h5", stream, c.data.size()), c.data);
  }
}

TEST(Deflater, WhatBecomesNoSmallerIsNotMade) {
  EXPECT_EQ(deflated_here(noise(1 << 18)), "");
  EXPECT_EQ(deflated_here(noise(100)), "");
  EXPECT_EQ(deflated_here("x"), "");
  EXPECT_EQ(deflated_here(noise(1 << 18) + std::string(30, 'x')), "");
}

}  // namespace
}  // namespace moonhalo::io::test_deflater
