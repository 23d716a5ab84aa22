// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/read_into.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "moonhalo/io/base/file_descriptor.h"
#include "moonhalo/io/base/positioned_file.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_read_into {
namespace {

std::string count_up(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i % 251);
  return text;
}

/// A file of these bytes.
std::string kept_in(const testing::Folder& folder, const std::string& bytes) {
  std::string path = folder / "x";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

struct PartsCase {
  const char* name;
  std::vector<int64_t> lengths;
  uint64_t offset;
};

TEST(ReadInto, PartsGetTheBytesThatLieOneBehindTheOther) {
  const testing::Folder folder;
  const std::string bytes = count_up(10000);
  const FileDescriptor file(open(kept_in(folder, bytes).c_str(), O_RDONLY));
  const PartsCase cases[] = {{"one", {10000}, 0},
                             {"none", {}, 7},
                             {"one of no bytes", {0}, 7},
                             {"some of no bytes", {0, 0, 10, 0, 20, 0}, 3},
                             {"more than one call takes", std::vector<int64_t>(2500, 3), 11},
                             {"more than one call takes, all of no bytes", std::vector<int64_t>(1030, 0), 11},
                             {"to the end", {9000, 0, 999}, 1}};
  for (const PartsCase& c : cases) {
    SCOPED_TRACE(c.name);
    std::vector<std::string> places;
    for (const int64_t length : c.lengths) places.emplace_back(length, '?');
    std::vector<ReadInto> parts;
    for (std::string& place : places) parts.push_back({place.data(), static_cast<int64_t>(place.size())});
    std::string found;

    const int64_t got = read_into(file.get(), parts, c.offset);

    for (const std::string& place : places) found += place;
    EXPECT_EQ(got, static_cast<int64_t>(found.size()));
    EXPECT_EQ(found, bytes.substr(c.offset, found.size()));
  }
}

TEST(ReadInto, SaysHowManyBytesThereAreBeforeTheEnd) {
  const testing::Folder folder;
  const FileDescriptor file(open(kept_in(folder, count_up(100)).c_str(), O_RDONLY));
  std::string a(30, '?'), b(90, '?');

  EXPECT_EQ(read_into(file.get(), {{a.data(), 30}, {b.data(), 90}}, 50), 50);
  EXPECT_EQ(a + b, count_up(100).substr(50) + std::string(70, '?'));
  EXPECT_EQ(read_into(file.get(), {{a.data(), 30}}, 100), 0);
}

TEST(ReadInto, AReadThatTheSystemRefusesIsToldByItsNumber) {
  char byte = 0;

  EXPECT_EQ(read_into(-1, {{&byte, 1}}, 0), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(ReadInto, AFileThatEndsBeforeAllPartsIsRefused) {
  const testing::Folder folder;
  const std::string path = kept_in(folder, count_up(100));
  const PositionedFile file = PositionedFile::open_to_read("test", path);
  std::string a(60, '?'), b(60, '?');

  file.read_at({{a.data(), 60}, {b.data(), 40}}, 0);
  EXPECT_EQ(a + b.substr(0, 40), count_up(100));
  EXPECT_EQ(testing::message_of([&] {
              file.read_at({{a.data(), 60}, {b.data(), 41}}, 0);
            }),
            "test: '" + path + "' is cut short");
}

}  // namespace
}  // namespace moonhalo::io::test_read_into
