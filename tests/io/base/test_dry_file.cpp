// SPDX-License-Identifier: Apache-2.0
// Files that dry runs make in memory.
#include "moonhalo/io/base/dry_file.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/io/support/raw_file.h"

namespace moonhalo::io::test_dry_file {
namespace {

using testing::Folder;

std::string text_of(const DryFile& file, uint64_t offset, size_t bytes) {
  std::string text(bytes, 'x');
  EXPECT_TRUE(file.read(text.data(), bytes, offset));
  return text;
}

TEST(DryFiles, X14_WritesStandOverTheFileOnDisk) {
  const Folder folder;
  const std::string path = folder / "file";
  std::ofstream(path) << std::string(20000, 'a');
  DryFile file(path);
  file.write("bcd", 3, 4095);  // over the edge of a page
  file.write("end", 3, 22000);
  DryFile copy = file;
  copy.write("e", 1, 0);

  EXPECT_EQ(file.size(), 22003u);
  EXPECT_EQ(text_of(file, 4093, 7), "aabcdaa");
  EXPECT_EQ(text_of(file, 19999, 3), std::string("a\0\0", 3));
  EXPECT_EQ(text_of(file, 22000, 4), std::string("end\0", 4));
  EXPECT_EQ(text_of(file, 0, 1) + text_of(copy, 0, 1), "ae");
  EXPECT_EQ(file.origin_of(4000, 100), -1);
  EXPECT_GE(file.origin_of(12288, 100), 0);
  EXPECT_EQ(std::filesystem::file_size(path), 20000u);
}

}  // namespace
}  // namespace moonhalo::io::test_dry_file
