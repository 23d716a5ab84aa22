// SPDX-License-Identifier: Apache-2.0
// A write that fails (a full disk, by a limit on file sizes) leaves half a file, which never takes the place of a good
// one.
#include <gtest/gtest.h>

#include <optional>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/io/support/full_disk.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_failed_writes {
namespace {

using namespace testing;

struct FailedWrite {
  const char* name;
  int64_t ranks;
  const char* mode;
  bool sharded;
};

const FailedWrite cases[] = {{"plain_new", 1, "w", false},
                             {"plain_added", 1, "a", false},
                             {"one_rank", 1, "w", true},
                             {"three_ranks", 3, "w", true},
                             {"three_ranks_adding", 3, "a", true}};

/// Writes "x" into `out` while the disk is full; the message, or what it did instead.
std::string fail_to_write(File& out, const MeshPtr& mesh, const FailedWrite& c) {
  const at::Tensor big = field({300, 400});
  const at::Tensor x = c.sharded ? distribute_tensor(big, mesh, {shard(0)}) : big;
  std::optional<FullDisk> disk;
  mesh->group().barrier();
  if (mesh->rank() == 0) disk.emplace(64 << 10);
  mesh->group().barrier();
  const std::string message = message_of([&] { out.write("x", x); });
  mesh->group().barrier();
  return message;
}

TEST(FailedWrite, X16_CloseRefusesAndTheGoodFileStays) {
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const Folder folder;
    const std::string path = folder / "x.h5";
    { RawFile(path).floats("good", field({7, 9})); }
    on_mesh({c.ranks}, [&](const MeshPtr& mesh) {
      File out = open(path, c.mode);
      if (c.sharded) out.write("before", distribute_tensor(field({6, 2}), mesh, {shard(0)}));

      const std::string write = fail_to_write(out, mesh, c);
      const std::string again = message_of([&] { out.write("y", at::zeros({2})); });
      const std::string close = message_of([&] { out.close(); });

      EXPECT_EQ(first_line(write), "write: dataset \"x\" of file \"" + path + "\": cannot write it");
      const std::string why = ": an earlier write failed, and half a file is never finished\n  have  " +
                              first_line(write) + ": File too large";
      EXPECT_EQ(again.find("write: dataset \"y\" of file \"" + path + "\"" + why), 0) << again;
      EXPECT_EQ(close.find("close: file \"" + path + "\"" + why), 0) << close;
      EXPECT_NE(close.find("\n  fix   "), std::string::npos) << close;
      EXPECT_EQ(close.find("\n  rank  "), std::string::npos) << "not the same on every rank: " << close;
      EXPECT_EQ(message_of([&] { out.close(); }), "");
    });
    EXPECT_EQ(open(path).keys(), std::vector<std::string>{"good"});
    EXPECT_TRUE(at::equal(open(path)["good"].read(), field({7, 9})));
    EXPECT_EQ(folder.names(), std::vector<std::string>{"x.h5"});
  }
}

/// Rank 0 alone writes plain tensors and attributes of a common file; all receive its failure.
TEST(FailedWrite, X16_WhatRankZeroWritesFailsOnEveryRank) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  on_mesh({3}, [&](const MeshPtr& mesh) {
    File out = open(path, "w");
    out.write("x", distribute_tensor(field({6, 2}), mesh, {shard(0)}));
    out.append("rows", at::zeros({2, 3}));
    const std::string of = "\" of file \"" + path + "\": ";
    const auto expect_on_all = [&](const std::function<void()>& work, const std::string& expected) {
      const std::string message = message_of(work);
      EXPECT_EQ(first_line(message), expected);
      EXPECT_NE(message.find("\n  rank  0 of 3"), std::string::npos) << message;
    };
    expect_on_all([&] { out.write("x", at::zeros({2})); }, "write: dataset \"x" + of + "it exists already");
    expect_on_all(
        [&] {
          out.append("rows", at::zeros({2, 4}));
        },
        "append: dataset \"rows" + of + "rows of another shape");
    expect_on_all([&] { out.set_attr("a", 1.0, "nothing"); }, "set_attr: object \"nothing" + of + "it does not exist");
    const std::string create = message_of([&] { out.create_dataset("made", {2}, at::kFloat); });
    EXPECT_EQ(first_line(create),
              mesh->rank() == 0 ? "" : "create_dataset: dataset \"made" + of + "only mesh rank 0 may do this now");
    out.write("y", at::ones({2}));
    out.set_attr("units", std::string("K"), "y");

    std::optional<FullDisk> disk;
    mesh->group().barrier();
    if (mesh->rank() == 0) disk.emplace(64 << 10);
    mesh->group().barrier();
    expect_on_all([&] { out.write("big", field({300, 400})); }, "write: dataset \"big" + of + "cannot write it");
    mesh->group().barrier();
    disk.reset();
    const std::string close = message_of([&] { out.close(); });
    EXPECT_NE(close.find("an earlier write failed"), std::string::npos) << close;
    EXPECT_EQ(close.find("\n  rank  "), std::string::npos) << "not the same on every rank: " << close;
  });
  EXPECT_EQ(folder.names().size(), 0u);
}

TEST(FailedWrite, X16_ADroppedFileIsNotFinished) {
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const Folder folder;
    const std::string path = folder / "x.h5";
    { RawFile(path).floats("good", field({7, 9})); }
    ::testing::internal::CaptureStderr();
    on_mesh({c.ranks}, [&](const MeshPtr& mesh) {
      File out = open(path, c.mode);
      fail_to_write(out, mesh, c);
    });
    const std::string said = ::testing::internal::GetCapturedStderr();

    EXPECT_EQ(said.find("moonhalo: \"" + path + "\" was not finished: close: "), 0) << said;
    EXPECT_EQ(said.find("Exception raised"), std::string::npos) << said;
    EXPECT_EQ(open(path).keys(), std::vector<std::string>{"good"});
    EXPECT_EQ(folder.names(), std::vector<std::string>{"x.h5"});
  }
}

TEST(FailedWrite, RefusalsChangeNothingAndTheFileCanBeFinished) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor x = distribute_tensor(field({4, 3}), mesh, {shard(0)});
    File out = open(path, "w");
    out.write("x", x);
    EXPECT_NE(message_of([&] { out.write("x", x); }), "");
    EXPECT_NE(message_of([&] { out.write("y", x, {.dims = {"only one"}}); }), "");
    EXPECT_NE(message_of([&] { out.write("z", x.to(at::kBFloat16)); }), "");
    out.close();
  });
  File more = open(path, "a");
  EXPECT_NE(message_of([&] { more.write("sparse", at::eye(3).to_sparse()); }), "");
  EXPECT_NE(message_of([&] { more.write("y", at::ones({2}), {.dims = {"a", "b"}}); }), "");
  more.write("y", at::ones({2}));
  more.close();
  EXPECT_EQ(open(path).keys(), (std::vector<std::string>{"x", "y"}));
}

/// Caught, and the handle dropped: the good file is not replaced by one that lacks what was refused.
TEST(FailedWrite, X16_ADroppedFileIsNotFinishedAfterARefusal) {
  for (const bool sharded : {false, true}) {
    const Folder folder;
    const std::string path = folder / "x.h5";
    { RawFile(path).floats("good", field({7, 9})); }
    ::testing::internal::CaptureStderr();
    on_mesh({2}, [&](const MeshPtr& mesh) {
      File out = open(path, "w");
      const at::Tensor x = field({4, 3}).to(at::kBFloat16);
      EXPECT_NE(message_of([&] { out.write("x", sharded ? distribute_tensor(x, mesh, {shard(0)}) : x); }), "");
    });
    const std::string said = ::testing::internal::GetCapturedStderr();

    EXPECT_EQ(said.find("moonhalo: \"" + path + "\" was not finished: close: file \"" + path +
                        "\": it was dropped after a write that was refused\n  have  write: dataset \"x\""),
              0)
        << said;
    EXPECT_EQ(open(path).keys(), std::vector<std::string>{"good"});
    EXPECT_EQ(folder.names(), std::vector<std::string>{"x.h5"});
  }
}

/// A dataset that is replaced is gone when the new one could not be made.
TEST(FailedWrite, X16_AFailedReplacementIsAFailure) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  { RawFile(path).floats("x", field({7, 9})); }
  File out = open(path, "a");
  {
    const FullDisk disk(64 << 10);
    EXPECT_NE(message_of([&] { out.write("x", field({300, 400}), {.replace = true}); }), "");
  }
  EXPECT_NE(message_of([&] { out.close(); }), "");
  EXPECT_TRUE(at::equal(open(path)["x"].read(), field({7, 9})));
}

}  // namespace
}  // namespace moonhalo::io::test_failed_writes
