// SPDX-License-Identifier: Apache-2.0
// HDF5 files that dry runs write in memory.
#include <gtest/gtest.h>

#include "moonhalo/io/fields/domain_file.h"
#include "tests/io/support/raw_file.h"

namespace moonhalo::io::test_dry_write {
namespace {

using testing::Folder;

TEST(DryWrite, X14_HoldsDatasetsUntilTheEndOfTheRank) {
  const Folder folder;
  const std::string path = folder / "no" + "/such/out.h5";
  {
    File file = open(path, "w", {.is_dry = true});
    file.write("u", at::zeros({3, 5}), {.attrs = {{"units", std::string("K")}}, .dims = {"y", "x"}});
    file.append("t", at::zeros({2}));
    EXPECT_THROW(file.write("u", at::zeros({3})), c10::ValueError);
    file.close();
  }
  {
    File dropped = open(path, "a", {.is_dry = true});
    dropped.write("dropped", at::zeros({3}));
    dropped.discard();
  }
  File file = open(path, "a", {.is_dry = true});
  file.append("t", at::zeros({5}));

  EXPECT_EQ(file["u"].attrs().size(), 1u);
  EXPECT_EQ(file["t"].shape(), std::vector<int64_t>{7});
  EXPECT_FALSE(file.has("dropped"));
  file.close();
  EXPECT_TRUE(folder.names().empty());
}

TEST(DryWrite, X14_AppendToAFileOnDiskLeavesItAsItIs) {
  const Folder folder;
  const std::string path = folder / "out.h5";
  File made = open(path, "w");
  made.append("t", at::arange(4));
  made.close();

  File file = open(path, "a", {.is_dry = true});
  file.append("t", at::arange(3));
  EXPECT_EQ(file["t"].shape(), std::vector<int64_t>{7});
  file.close();

  EXPECT_EQ(open(path)["t"].shape(), std::vector<int64_t>{4});
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out.h5"});
}

}  // namespace
}  // namespace moonhalo::io::test_dry_write
