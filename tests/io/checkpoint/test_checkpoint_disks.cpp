// SPDX-License-Identifier: Apache-2.0
// X16: ranks that see other disks than rank 0. X12: what a killed save left on the disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "moonhalo/io/checkpoint/checkpoint_folder.h"
#include "moonhalo/io/checkpoint/checkpoint_read.h"
#include "moonhalo/io/checkpoint/safetensors.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_checkpoint_disks {
namespace {

TEST(CheckpointReader, X16_AnotherFileOnAnotherDiskIsFoundOut) {
  const testing::Folder folder;
  const at::Tensor x = at::arange(40000, at::kFloat);
  save_safetensors(folder / "0", {{"x", x}});
  save_safetensors(folder / "1", {{"x", x}});
  save_safetensors(folder / "2", {{"y", x}});  // as large
  testing::on_mesh({3}, [&](const MeshPtr& mesh) {
    for (const bool cut : {true, false}) {
      const SafetensorsText text = read_safetensors_text(folder / "0");
      CheckpointReader reader(mesh->group());
      reader.add("model", folder / std::to_string(mesh->rank()), text);
      const Placement placement = cut ? shard(0, {40000, 0, 0}) : replicate();
      const at::Tensor target = distribute_tensor(at::zeros({40000}), mesh, {placement});

      reader.read_into("model", "x", target);

      if (cut) {  // nothing of rank 2's file is required
        reader.finish();
        EXPECT_TRUE(at::equal(full_tensor(target), x));
        continue;
      }
      EXPECT_THAT(
          testing::message_of([&] { reader.finish(); }),
          ::testing::AllOf(::testing::HasSubstr("rank 2 finds another file at '" + folder / "2" + "' than rank 0"),
                           ::testing::HasSubstr("layout = \"per_rank\"")));
    }
  });
}

/// Row X12: a save that was killed between its last two steps is a checkpoint, and the next save keeps it until its own
/// is complete.
TEST(CheckpointFolder, X12_WhatAKilledSaveLeftGetsItsName) {
  for (const char* left : {".partial", ".replaced"}) {
    const testing::Folder folder;
    const std::string path = folder / "step";
    std::filesystem::create_directory(path + left);
    std::ofstream(path + left + "/" + kCheckpointFile) << "{}";
    std::filesystem::create_directory(path + ".replaced");  // the rest of another one

    settle_checkpoint("save", path);

    EXPECT_TRUE(is_checkpoint("save", path)) << left;
    EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
    EXPECT_FALSE(std::filesystem::exists(path + ".replaced"));
  }
}

}  // namespace
}  // namespace moonhalo::io::test_checkpoint_disks
