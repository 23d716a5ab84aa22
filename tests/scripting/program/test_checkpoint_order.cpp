// SPDX-License-Identifier: Apache-2.0
// X16: a checkpoint is on the disk before it takes the place of the one before. No kill of a process shows that, since
// the system still writes what it has taken over; so the calls to the system are watched, in the place of those of the
// C library.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/io/support/raw_file.h"
#include "tests/scripting/several_states.h"

namespace moonhalo::scripting::test_checkpoint_order {
namespace {

/// The calls that make something last, in order: {"fsync", path} and {"rename", new name}.
struct Calls {
  using Call = std::pair<std::string, std::string>;
  std::mutex mutex;
  bool watched = false;
  std::vector<Call> seen;

  void add(const char* kind, const std::string& path) {
    const std::lock_guard lock(mutex);
    if (watched) seen.emplace_back(kind, path);
  }
};
Calls calls;

/// While it is shut, a thread of the background can give no file its name; the test's own may.
struct Gate {
  std::atomic<bool> shut = false;
  std::thread::id test;

  void pass() const {
    if (std::this_thread::get_id() != test) shut.wait(true);
  }
};
Gate gate;

int renamed(const char* from, const char* to, unsigned flags) {
  gate.pass();
  const auto result = static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags));
  if (result == 0) calls.add("rename", to);
  return result;
}

}  // namespace
}  // namespace moonhalo::scripting::test_checkpoint_order

extern "C" __attribute__((visibility("default"))) int fsync(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = readlink(link.c_str(), path, sizeof path);
  const auto result = static_cast<int>(syscall(SYS_fsync, descriptor));
  if (result == 0 && length > 0)
    moonhalo::scripting::test_checkpoint_order::calls.add("fsync", std::string(path, static_cast<size_t>(length)));
  return result;
}
extern "C" __attribute__((visibility("default"))) int rename(const char* from, const char* to) noexcept {
  return moonhalo::scripting::test_checkpoint_order::renamed(from, to, 0);
}
extern "C" __attribute__((visibility("default"))) int renameat2(int, const char* from, int, const char* to,
                                                                unsigned flags) noexcept {
  return moonhalo::scripting::test_checkpoint_order::renamed(from, to, flags);
}

namespace moonhalo::scripting::test_checkpoint_order {
namespace {

using Place = std::vector<Calls::Call>::const_iterator;

/// Where a call of this kind is whose path begins so.
Place find(const std::string& kind, const std::string& path, Place from) {
  return std::find_if(from, calls.seen.cend(),
                      [&](const auto& call) { return call.first == kind && call.second.starts_with(path); });
}

struct CheckpointOrder : ::testing::TestWithParam<const char*> {};

TEST_P(CheckpointOrder, X16_ANewCheckpointIsOnTheDiskBeforeItTakesTheOldOnesPlace) {
  const testing::Folder folder;
  const State state = new_state();
  const std::string ck = std::filesystem::canonical(folder / "") / "ck";
  const std::string save = "local mh = require 'moonhalo'\nlocal net = mh.nn.Linear(300, 200)\nmh.checkpoint.save('" +
                           ck + "', {model = net, x = mh.ones{4}, step = 1}, {" + GetParam() +
                           "})\nmh.checkpoint.latest('" + (folder / "") + "')\nreturn 'saved'";
  ASSERT_EQ(run(state.get(), save), "saved");

  calls.watched = true;
  const std::string result = run(state.get(), save);
  calls.watched = false;

  ASSERT_EQ(result, "saved");
  const Place first = calls.seen.cbegin(), end = calls.seen.cend();
  const auto commit = std::find(first, end, Calls::Call{"rename", ck});
  ASSERT_NE(commit, end) << "the new one took no place";
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(ck)) files.push_back(entry.path().filename());
  EXPECT_THAT(files, ::testing::IsSupersetOf({"checkpoint.json", "model.safetensors"}));
  Place last = first;  // name of a file in the new folder
  for (Place at = first; at != commit; ++at) {
    if (at->first == "rename") last = at;
  }
  for (const std::string& file : files) {
    EXPECT_LT(find("fsync", ck + ".partial/" + file, first), commit) << file << " may be lost";
  }
  EXPECT_LT(std::find(last, end, Calls::Call{"fsync", ck + ".partial"}), commit) << "names of files may be lost";
  EXPECT_NE(std::find(commit, end, Calls::Call{"fsync", std::filesystem::path(ck).parent_path()}), end)
      << "the new name may be lost";
  calls.seen.clear();
}

INSTANTIATE_TEST_SUITE_P(Saves, CheckpointOrder, ::testing::Values("", "async = true"), [](const auto& param) {
  return std::string(*param.param == '\0' ? "AtOnce" : "InTheBackground");
});

// X12: a script trains on while its writer can get no further, and the checkpoint is of the moment of the call.
TEST(CheckpointBackground, X12_TheScriptGoesOnWhileTheWriterWaits) {
  const testing::Folder folder;
  const State state = new_state();
  const std::string ck = std::filesystem::canonical(folder / "") / "ck";
  const std::string saves = R"(
    mh = require "moonhalo"
    net = mh.nn.Linear(3, 2)
    kept = net.weight:detach():clone()
    local opt = mh.optim.SGD(net:parameters(), {lr = 0.5})
    saving = mh.checkpoint.save(PATH, {model = net, step = 1}, {async = true})
    for _ = 1, 3 do
      net(mh.ones{4, 3}):sum():backward()
      opt:step()
    end
    return ("done %s, as before %s"):format(saving:is_done(), mh.equal(net.weight:detach(), kept)))";
  const std::string loads = R"(
    saving:wait()
    local other = mh.nn.Linear(3, 2)
    local saved = mh.checkpoint.load(PATH, {model = other})
    return ("done %s, as before %s, step %d"):format(saving:is_done(), mh.equal(other.weight:detach(), kept), saved.step))";
  gate.test = std::this_thread::get_id();
  gate.shut = true;

  const std::string before = run(state.get(), "PATH = '" + ck + "'\n" + saves);
  const bool is_there = std::filesystem::exists(ck);
  gate.shut = false;
  gate.shut.notify_all();

  EXPECT_EQ(before, "done false, as before false");
  EXPECT_FALSE(is_there);
  EXPECT_EQ(run(state.get(), loads), "done true, as before true, step 1");
}

}  // namespace
}  // namespace moonhalo::scripting::test_checkpoint_order
