// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/background_write.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/checkpoint.h"
#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "moonhalo/io/checkpoint/checkpoint_write.h"
#include "moonhalo/io/codecs/crc32c.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_background_write {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(BackgroundWrite, X16_TheLastRankGivesTheCheckpointItsName) {
  const testing::Folder folder;
  const std::string path = folder / "ck", file = path + ".partial/x";
  std::filesystem::create_directory(path + ".partial");
  CheckedFile checked{.path = file, .tensors = {{"x", at::kChar, {6}}}, .metadata = {{"k", "v"}}};
  const auto begin = static_cast<int64_t>(lay_out_safetensors(checked.tensors, checked.metadata).size());
  PositionedFile::create("test", file, begin + 6);
  std::string mine = "abc", others = "def";
  BackgroundWrite first(path, 0, 2, {checked}, 3), second(path, 1, 2, {checked}, 3);
  first.add({.file = 0, .offset = begin, .bytes = 3, .tensor = 0, .behind = 3}, mine.data());
  second.add({.file = 0, .offset = begin + 3, .bytes = 3, .tensor = 0, .behind = 0}, others.data());
  mine = others = "---";  // what was copied counts

  first.start("{}");
  first.join();
  EXPECT_FALSE(is_checkpoint("test", path) || is_checkpoint("test", path + ".partial"));
  second.start("");
  second.join();

  const SafetensorsHeader header = parse_safetensors(path + "/x", read_safetensors_text(path + "/x"));
  EXPECT_EQ(read(path + "/x").substr(static_cast<size_t>(begin)), "abcdef");
  EXPECT_EQ(header.tensors[0].crc32c, crc32c("abcdef", 6));
  EXPECT_EQ(header.metadata, checked.metadata);
  EXPECT_EQ(read(path + "/checkpoint.json"), "{}");
  EXPECT_THAT(folder.names(), ::testing::ElementsAre("ck"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 2);
}

/// The folder is gone while the copy waits to be written: what fails on rank 0 fails on all, and the older one stays.
TEST(BackgroundWrite, X16_AFailureOnOneRankIsAnErrorOnAll) {
  const testing::Folder folder;
  const std::string path = folder / "ck";
  testing::on_mesh({3}, [&](const MeshPtr& mesh) {
    Communicator& world = mesh->group();
    at::Tensor x = at::zeros({3});
    save_checkpoint(world, path, {{"x", &x}});
    CheckpointWriter writer(world, path);
    writer.add("x", {{"", at::ones({3})}});

    EXPECT_THAT(testing::message_of([&] {
                  auto background = writer.copy();
                  background->start(world.rank() == 0 ? "{}" : "");
                  CheckpointSaving(world, path, background).wait();
                }),
                ::testing::HasSubstr("checkpoint.save: cannot write '" + path + ".partial/"));

    x.fill_(7);
    load_checkpoint(world, path, {{"x", &x}});
    EXPECT_TRUE(at::equal(x, at::zeros({3})));
  });
}

}  // namespace
}  // namespace moonhalo::io::test_background_write
