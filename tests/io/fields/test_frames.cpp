// SPDX-License-Identifier: Apache-2.0
// Frames read ahead (X21): any order of dims, many files, what is kept, failures; moments of frames (X20).
#include "moonhalo/io/fields/frames.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "moonhalo/io/base/file_version.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/fields/frame_queue.h"
#include "moonhalo/io/fields/moments.h"
#include "tests/io/support/raw_file.h"
#include "tests/io/support/zarr_folder.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_frames {
namespace {

using moonhalo::testing::Folder;
using moonhalo::testing::kGroup3;
using moonhalo::testing::message_of;
using moonhalo::testing::plain_bytes;
using moonhalo::testing::ZarrFolder;
using ::testing::HasSubstr;

/// Files of one dataset "x".
class Frames : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const at::Tensor& x, const WriteOptions& options = {}) {
    std::string path = folder_ / (name + ".h5");
    File file = open(path, "w");
    file.write("x", x, options);
    file.close();
    return path;
  }

 private:
  const Folder folder_;
};

at::Tensor numbers(at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return at::arange(count, at::kFloat).reshape(shape).mul(0.5);
}

at::Tensor frame_of(FrameReader& reader, const FramePlace& place, at::IntArrayRef shape) {
  at::Tensor frame = at::full(shape, -1, reader.dtype());
  reader.read(place, frame);
  return frame;
}

TEST_F(Frames, X21_DimsComeInAnyOrder) {
  // [level, longitude, step, latitude, trajectory]
  const at::Tensor x = numbers({2, 5, 3, 4, 6});
  const FrameSource source{.path = write("order", x),
                           .dataset = "x",
                           .step_dim = 2,
                           .sample_dim = 4,
                           .channel_dims = {0},
                           .space_dims = {3, 1}};
  FrameReader reader({source}, Box{{1, 4}, {2, 5}}, at::kDouble, 1 << 20);

  const at::Tensor frame = frame_of(reader, {0, 5, 2}, {2, 3, 3});

  EXPECT_TRUE(
      at::equal(frame, x.select(4, 5).select(2, 2).permute({0, 2, 1}).slice(1, 1, 4).slice(2, 2, 5).to(at::kDouble)));
}

TEST_F(Frames, X21_ChunksOfSeveralStepsAreDecodedOnceWhileThereIsRoom) {
  const at::Tensor x = numbers({10, 4, 4});
  const FrameSource source{.path = write("chunks", x, {.chunks = {4, 4, 4}, .compression = 1}),
                           .dataset = "x",
                           .step_dim = 0,
                           .sample_dim = -1,
                           .channel_dims = {},
                           .space_dims = {1, 2}};
  const int64_t chunk = 4 * 16 * 4;
  for (const auto& [room, decoded] : {std::pair(int64_t{3} * chunk, 3), {2 * chunk, 6}, {chunk, 6}, {int64_t{0}, 20}}) {
    FrameReader reader({source}, Box{{0, 4}, {0, 4}}, at::kFloat, room);
    const int64_t before = io_stats().chunks;
    for (int round = 0; round < 2; ++round) {
      for (int64_t step = 0; step < 10; ++step) {
        EXPECT_TRUE(at::equal(frame_of(reader, {0, 0, step}, {1, 4, 4}), x.narrow(0, step, 1)));
      }
    }
    EXPECT_EQ(io_stats().chunks - before, decoded) << room;
  }
}

// If all steps of a chunk need more memory than is allowed, one step alone is decoded.
TEST_F(Frames, X21_WithoutRoomForAChunkAStepIsRead) {
  const FrameSource source{.path = write("small", numbers({8, 4, 4}), {.chunks = {4, 4, 4}, .compression = 1}),
                           .dataset = "x",
                           .step_dim = 0,
                           .sample_dim = -1,
                           .channel_dims = {},
                           .space_dims = {1, 2}};
  const int64_t frame = 16 * 4;
  for (const auto& [room, steps] : {std::pair(4 * frame, 4), {4 * frame - 1, 1}, {int64_t{0}, 1}}) {
    FrameReader reader({source}, Box{{0, 4}, {0, 4}}, at::kFloat, room);
    const int64_t before = io_stats().asked;
    frame_of(reader, {0, 0, 5}, {1, 4, 4});
    EXPECT_EQ(io_stats().asked - before, steps * frame) << room;
  }
}

TEST_F(Frames, X21_MoreFilesThanStayOpen) {
  std::vector<FrameSource> sources;
  for (int i = 0; i < 70; ++i) {
    sources.push_back({.path = write(std::to_string(i), numbers({2, 3}) + i),
                       .dataset = "x",
                       .step_dim = 0,
                       .sample_dim = -1,
                       .channel_dims = {},
                       .space_dims = {1}});
  }
  FrameReader reader(sources, Box{{0, 3}}, at::kFloat, 0);
  for (const int64_t source : {0, 69, 35, 0, 1, 69}) {
    for (int64_t i = 0; i < 70; ++i) {
      const int64_t at = (source + i) % 70;
      EXPECT_TRUE(at::equal(frame_of(reader, {at, 0, 1}, {1, 3}), numbers({2, 3}).narrow(0, 1, 1) + at));
    }
  }
}

TEST_F(Frames, X21_BatchesComeInOrderAndFailuresAreThrownByWait) {
  const at::Tensor x = numbers({6, 4});
  const FrameSource source{.path = write("queue", x),
                           .dataset = "x",
                           .step_dim = 0,
                           .sample_dim = -1,
                           .channel_dims = {1},
                           .space_dims = {}};
  FrameSource absent = source;
  absent.path += ".none";
  const auto reader = std::make_shared<FrameReader>(std::vector{source, absent}, Box{}, at::kFloat, 1 << 20);
  const at::Tensor mean = at::tensor({1.f, 2.f, 3.f, 4.f}), std = at::tensor({2.f, 4.f, 8.f, 16.f});
  FrameQueue queue({{.name = "x", .reader = reader, .channels = 4, .mean = mean, .std = std}});

  const auto first = queue.submit({{0, {{0, 0, 5}, {0, 0, 2}}}});
  const auto bad = queue.submit({{0, {{1, 0, 0}}}});
  const auto last = queue.submit({{0, {{0, 0, 0}}}, {0, {}}});

  const auto frames = last->wait();
  EXPECT_TRUE(at::equal(frames[0], (x.narrow(0, 0, 1) - mean) / std));
  EXPECT_EQ(frames[1].sizes(), at::IntArrayRef({0, 4}));
  EXPECT_THAT(message_of([&] { bad->wait(); }), HasSubstr(absent.path));
  EXPECT_TRUE(at::equal(first->wait()[0], (at::stack({x[5], x[2]}) - mean) / std));
}

TEST_F(Frames, X21_AQueueThatIsDroppedDropsWhatHasNotBegun) {
  const at::Tensor x = numbers({50, 40});
  const FrameSource source{.path = write("dropped", x),
                           .dataset = "x",
                           .step_dim = 0,
                           .sample_dim = -1,
                           .channel_dims = {1},
                           .space_dims = {}};
  std::vector<FramePlace> all;
  for (int64_t step = 0; step < 50; ++step) all.push_back({0, 0, step});
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<FrameQueue::Ticket>> tickets;
    {
      FrameQueue queue({{.name = "x",
                         .reader = std::make_shared<FrameReader>(std::vector{source}, Box{}, at::kFloat, 0),
                         .channels = 40}});
      for (int i = 0; i < 5; ++i) tickets.push_back(queue.submit({{0, all}}));
    }
    for (const auto& ticket : tickets) {
      std::vector<at::Tensor> frames;
      const std::string message = message_of([&] { frames = ticket->wait(); });
      EXPECT_TRUE(message.empty() ? at::equal(frames[0], x)
                                  : message == "loader: this batch was dropped before it was read")
          << message;
    }
  }
}

TEST_F(Frames, X21_MissingValuesAndStepsThatAreGoneAreNamed) {
  at::Tensor x = numbers({3, 2, 4});
  x[1][1][2] = std::nan("");
  const FrameSource source{.path = write("missing", x),
                           .dataset = "x",
                           .step_dim = 0,
                           .sample_dim = -1,
                           .channel_dims = {1},
                           .space_dims = {2}};
  const auto reader = std::make_shared<FrameReader>(std::vector{source}, Box{{1, 4}}, at::kFloat, 0);
  FrameQueue queue({{.name = "u", .reader = reader, .channels = 2, .may_be_missing = false}});

  EXPECT_THAT(message_of([&] {
                queue.submit({{0, {{0, 0, 0}, {0, 0, 1}}}})->wait();
              }),
              HasSubstr("'u' has a missing value (NaN) at [2], channel 1\n  have  step 1"));
  EXPECT_THAT(message_of([&] {
                queue.submit({{0, {{0, 0, 3}}}})->wait();
              }),
              HasSubstr("has changed since it was opened\n  have  shape [3, 2, 4], expected step 3"));
  EXPECT_EQ(queue.submit({{0, {{0, 0, 2}}}})->wait().size(), 1u);
}

/// A file that becomes shorter while it is read has changed, and is not damaged.
TEST_F(Frames, X21_AFileThatIsCutShortWhileItIsReadHasChanged) {
  const at::Tensor x = numbers({200, 16, 16});
  for (const int64_t wait : {0, 20, 50, 100, 200, 400, 800, 1600, 3200}) {
    const std::string path = write("short", x, {.chunks = std::vector<int64_t>{1, 16, 16}, .compression = 1});
    FrameReader reader(
        {{.path = path, .dataset = "x", .step_dim = 0, .space_dims = {1, 2}, .version = file_version(path)}},
        Box{{0, 16}, {0, 16}}, at::kFloat, 0);
    frame_of(reader, {0, 0, 0}, {1, 16, 16});
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(wait));
      std::filesystem::resize_file(path, 100);
    });
    const std::string message = message_of([&] {
      for (int64_t step = 1;; step = step % 199 + 1) frame_of(reader, {0, 0, step}, {1, 16, 16});
    });
    other.join();
    EXPECT_THAT(message, HasSubstr("has changed since it was opened"));
  }
}

/// A folder that is replaced, or whose chunks are written again, is another one; so is a file of the same size and
/// time.
TEST_F(Frames, X21_AFolderThatIsReplacedIsNoticed) {
  const Folder folder;
  const std::string path = folder / "x.zarr";
  const auto write = [](const std::string& to, const at::Tensor& x, bool version3, bool in_group = true) {
    ZarrFolder zarr;
    if (in_group) zarr.files[version3 ? "zarr.json" : ".zgroup"] = version3 ? kGroup3 : R"({"zarr_format": 2})";
    const std::string name = in_group ? "deep/x" : "";
    if (in_group) zarr.files[version3 ? "deep/zarr.json" : "deep/.zgroup"] = zarr.files.begin()->second;
    version3 ? zarr.add3(name, x, 1, 4, "", plain_bytes) : zarr.add2(name, x, 1, 4, "null", plain_bytes);
    zarr.write(to);
  };
  const at::Tensor x = numbers({3, 4}), y = x + 100;
  for (const bool version3 : {false, true}) {
    for (const bool in_group : {false, true}) {
      SCOPED_TRACE(std::to_string(version3) + std::to_string(in_group));
      const auto reader = [&] {
        return FrameReader({{.path = path,
                             .dataset = in_group ? "deep/x" : "x",
                             .step_dim = 0,
                             .space_dims = {1},
                             .version = file_version(path)}},
                           Box{{0, 4}}, at::kFloat, 0);
      };
      const auto expect_change = [&](const std::function<void()>& change) {
        std::filesystem::remove_all(path);
        write(path, x, version3, in_group);
        FrameReader before = reader(), during = reader();
        EXPECT_TRUE(at::equal(frame_of(during, {0, 0, 0}, {1, 4}), x.narrow(0, 0, 1)));
        change();
        const std::string wanted = "read: file \"" + path + "\" has changed since it was opened\n  have  ";
        for (int again = 0; again < 2; ++again) {
          EXPECT_THAT(message_of([&] { frame_of(before, {0, 0, 1}, {1, 4}); }), HasSubstr(wanted));
          EXPECT_THAT(message_of([&] { frame_of(during, {0, 0, 1}, {1, 4}); }), HasSubstr(wanted));
        }
        FrameReader after = reader();
        EXPECT_TRUE(at::equal(frame_of(after, {0, 0, 1}, {1, 4}), y.narrow(0, 1, 1)));
      };
      expect_change([&] {
        write(folder / "new", y, version3, in_group);
        std::filesystem::remove_all(path);
        std::filesystem::rename(folder / "new", path);
      });
      expect_change([&] { write(path, y, version3, in_group); });
    }
  }
}

/// Neither a folder nor a head says so.
TEST_F(Frames, X21_AChunkThatIsWrittenAnewInItsPlaceIsNoticed) {
  const Folder folder;
  const at::Tensor x = numbers({6, 8}), y = x + 100;
  for (const std::string kind : {"version 2", "version 3", "shards"}) {
    SCOPED_TRACE(kind);
    const std::string path = folder / "x.zarr";
    const auto files_of = [&](const at::Tensor& values) {
      ZarrFolder zarr;
      zarr.files[kind == "version 2" ? ".zgroup" : "zarr.json"] =
          kind == "version 2" ? R"({"zarr_format": 2})" : kGroup3;
      if (kind == "version 2") zarr.add2("x", values, 1, 4, "null", plain_bytes);
      if (kind == "version 3") zarr.add3("x", values, 1, 4, "", plain_bytes);
      if (kind == "shards") zarr.add_shards("x", values, 1, 4, "", plain_bytes);
      return zarr.files;
    };
    std::filesystem::remove_all(path);
    ZarrFolder whole;
    whole.files = files_of(x);
    whole.write(path);
    FrameReader reader(
        {{.path = path, .dataset = "x", .step_dim = 0, .space_dims = {1}, .version = file_version(path)}}, Box{{0, 8}},
        at::kFloat, 0);
    EXPECT_TRUE(at::equal(frame_of(reader, {0, 0, 0}, {1, 8}), x.narrow(0, 0, 1)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // file systems count time in steps
    const std::string chunk = kind == "version 2" ? "x/4.1" : kind == "version 3" ? "x/c/4/1" : "x/c/2/0";
    std::ofstream(path + "/" + chunk, std::ios::binary) << files_of(y).at(chunk);

    EXPECT_TRUE(at::equal(frame_of(reader, {0, 0, 1}, {1, 8}), x.narrow(0, 1, 1)));
    EXPECT_THAT(
        message_of([&] {
          frame_of(reader, {0, 0, 4}, {1, 8});
        }),
        HasSubstr("has changed since it was opened\n  have  chunk file \"" + path + "/" + chunk + "\", written "));

    std::filesystem::last_write_time(path + "/" + chunk,
                                     std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
    EXPECT_EQ(message_of([&] { frame_of(reader, {0, 0, 4}, {1, 8}); }), "");  // a clock that was wrong
  }
}

TEST_F(Frames, X21_AFileOfTheSameSizeAndTimeIsAnother) {
  const at::Tensor x = numbers({3, 4});
  const std::string path = write("same", x), other = write("other", x + 1);
  FrameReader reader({{.path = path, .dataset = "x", .step_dim = 0, .space_dims = {1}, .version = file_version(path)}},
                     Box{{0, 4}}, at::kFloat, 0);
  EXPECT_TRUE(at::equal(frame_of(reader, {0, 0, 0}, {1, 4}), x.narrow(0, 0, 1)));
  std::filesystem::last_write_time(other, std::filesystem::last_write_time(path));
  std::filesystem::rename(other, path);
  EXPECT_THAT(message_of([&] {
                frame_of(reader, {0, 0, 1}, {1, 4});
              }),
              HasSubstr("has changed since it was opened\n  have  another file of the same version, "));
}

TEST_F(Frames, X20_MomentsAreThoseOfAllValuesThatAreThere) {
  at::Tensor x = numbers({5, 3, 11}).sin().to(at::kDouble);
  x[2][0][3] = x[0][1][10] = std::nan("");
  const at::Tensor weights = at::arange(11, at::kDouble);
  at::Tensor moments = no_moments(3);
  for (int64_t i = 0; i < 5; ++i) merge_moments(moments, frame_moments(x[i].contiguous(), weights));

  for (int64_t channel = 0; channel < 3; ++channel) {
    const at::Tensor there = x.select(1, channel).isnan().logical_not();
    const at::Tensor v = x.select(1, channel).masked_select(there), w = weights.expand({5, 11}).masked_select(there);
    const at::Tensor mean = (v * w).sum() / w.sum();
    const at::Tensor expected =
        at::stack({there.sum().to(at::kDouble), w.sum(), mean, ((v - mean).square() * w).sum(), v.min(), v.max()});
    EXPECT_TRUE(at::allclose(moments[channel], expected, 1e-12, 1e-12)) << moments[channel] << expected;
  }
  const at::Tensor none = frame_moments(at::full({1, 4}, std::nan(""), at::kFloat), {});
  EXPECT_TRUE(at::equal(none, no_moments(1)));
}

}  // namespace
}  // namespace moonhalo::io::test_frames
