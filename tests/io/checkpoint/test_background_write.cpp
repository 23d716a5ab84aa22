// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/background_write.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "tests/io/support/raw_file.h"

namespace moonhalo::io {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(BackgroundWrite, X16_TheLastRankGivesTheCheckpointItsName) {
  const testing::Folder folder;
  const std::string path = folder / "ck", file = path + ".partial/x";
  std::filesystem::create_directory(path + ".partial");
  PositionedFile::create("test", file, 6);
  std::string mine = "abc", others = "def";
  BackgroundWrite first(path, 0, 2, {file}, 3), second(path, 1, 2, {file}, 3);
  first.add(0, 0, mine.data(), 3);
  second.add(0, 3, others.data(), 3);
  mine = others = "---";  // what was copied counts

  first.start("{}");
  first.join();
  EXPECT_FALSE(is_checkpoint("test", path) || is_checkpoint("test", path + ".partial"));
  second.start("");
  second.join();

  EXPECT_EQ(read(path + "/x"), "abcdef");
  EXPECT_EQ(read(path + "/checkpoint.json"), "{}");
  EXPECT_THAT(folder.names(), ::testing::ElementsAre("ck"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 2);
}

}  // namespace
}  // namespace moonhalo::io
