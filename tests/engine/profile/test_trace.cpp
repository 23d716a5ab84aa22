// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/trace.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/profile/profiler.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/chrome_trace.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_trace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

std::vector<RankRecord> records_of_steps(int ranks) {
  std::vector<RankRecord> records;
  on_ranks(ranks, [&](Communicator& world) {
    const MeshPtr mesh = init_device_mesh(world, "cpu", {ranks}, {"domain"});
    const at::Tensor x = distribute_tensor(make_tensor({9, 4}, 1), mesh, {shard(0)});
    const at::Tensor weight = make_tensor({4, 4}, 2).requires_grad_(true);
    Profiler profiler(world.shared_from_this());
    profiler.start();
    for (int step = 0; step < 2; ++step) {
      const RecordRange range("a \"name\"\n\x01 \xc3\xa9 \xff; b");
      {
        const RecordPart reading("reading", Phase::kReading);
        at::ones({3}).sum();
      }
      const InModule module("Net");
      const at::Tensor y = at::matmul(x.roll(1, 0), weight);
      const BackwardOnThisThread here;
      y.square().sum().backward();
      note_optimizer_step(&mesh);
    }
    profiler.stop();
    if (world.rank() == 0) records = profiler.records();
  });
  return records;
}

TEST(Trace, Y13_NestsHasBothEndsOfArrowsAndIsUtf8) {
  for (const int ranks : {1, 3}) {
    const std::vector<RankRecord> records = records_of_steps(ranks);
    const std::string text = chrome_trace(records);

    const ChromeTrace trace = load_chrome_trace(text);
    size_t events = 0, backward = 0;
    for (const RankRecord& record : records) {
      events += record.events.size();
      for (const ProfileEvent& event : record.events)
        backward += event.kind == EventKind::kBackward && event.value >= 0 ? 1 : 0;
    }
    EXPECT_EQ(trace.problems, "");
    EXPECT_EQ(trace.events, events);
    EXPECT_EQ(trace.arrows.at("forward to backward"), backward);
    EXPECT_EQ(trace.arrows.count("message"), ranks > 1 ? 1u : 0u);
    EXPECT_EQ(trace.processes, static_cast<size_t>(ranks));
    EXPECT_THAT(trace.names, Contains("a \"name\"   \xc3\xa9 \xef\xbf\xbd; b"));
    for (const char* row : {"backward", "reading"}) EXPECT_THAT(trace.rows, Contains(row));
  }
}

// The loader above finds what is wrong.
TEST(Trace, Y13_TheLoaderOfTheTestsRefusesDamagedTraces) {
  const std::string text = chrome_trace(records_of_steps(2));
  const auto problems = [&](const std::string& from, const std::string& to) {
    std::string damaged = text;
    const size_t at = damaged.rfind(from);
    EXPECT_NE(at, std::string::npos) << from;
    damaged.replace(at, from.size(), to);
    return load_chrome_trace(damaged).problems;
  };
  EXPECT_THAT(problems("\"ph\":\"f\"", "\"ph\":\"s\""), HasSubstr("ends"));
  EXPECT_THAT(problems("\"ph\":\"X\"", "\"ph\":\"Q\""), HasSubstr("ph"));
  const size_t inner = text.rfind("\"dur\":", text.find("\"name\":\"aten::matmul\""));
  ASSERT_NE(inner, std::string::npos);
  EXPECT_THAT(load_chrome_trace(text.substr(0, inner + 6) + "9999999" + text.substr(inner + 6)).problems,
              HasSubstr("nest"));
  EXPECT_THAT(problems("aten::", "aten\xff::"), HasSubstr("UTF-8"));
  EXPECT_THAT(problems("]}", ""), HasSubstr("parse"));
}

TEST(Trace, Y13_OfNothingIsATrace) {
  EXPECT_EQ(load_chrome_trace(chrome_trace({})).problems, "");
  EXPECT_EQ(load_chrome_trace(chrome_trace({RankRecord{}})).problems, "");
  EXPECT_EQ(flame_stacks({RankRecord{}}), "");
}

TEST(Trace, Y13_StacksAddUpToTheSteps) {
  RankRecord record;
  record.names = {"step", "a;b", "c"};
  const auto add = [&](int64_t from, int64_t to, uint32_t name, uint32_t parent) {
    ProfileEvent event;
    event.begin = from * 1000;
    event.end = to * 1000;
    event.name = name;
    event.parent = parent;
    record.events.push_back(event);
  };
  add(0, 100, 0, ProfileEvent::kNoEvent);
  add(10, 40, 1, 0);
  add(15, 20, 2, 1);
  add(50, 60, 1, 0);

  EXPECT_EQ(flame_stacks({record}), "rank 0;step 60\nrank 0;step;a:b 35\nrank 0;step;a:b;c 5\n");
}

}  // namespace
}  // namespace moonhalo::testing::test_trace
