// SPDX-License-Identifier: Apache-2.0
// moonhalo inspect, also of files that would take the program along.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "scripting/session.h"
#include "tests/io/raw_file.h"
#include "tests/scripting/run_program.h"

namespace moonhalo::scripting {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// Sends a signal to the child of this process as soon as there is one.
class SignalToChild {
 public:
  explicit SignalToChild(int signal)
      : thread_([this, signal, file = "/proc/self/task/" + std::to_string(gettid()) + "/children"] {
          while (!done_) {
            pid_t child = 0;
            if (std::ifstream(file) >> child) kill(child, signal);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }) {}
  ~SignalToChild() {
    done_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

TEST(Inspect, X16_SafelyPrintsTheSame) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "x.h5";
  moonhalo::testing::RawFile(path).floats("air", at::zeros({2, 3}));

  const Result plain = run({"inspect", path}), safe = run({"inspect", path, "--safe"});

  EXPECT_EQ(safe.status, kDone);
  EXPECT_EQ(safe.out, plain.out);
  EXPECT_THAT(safe.out, HasSubstr("air  float32 [2, 3]"));
  EXPECT_THAT(safe.err, IsEmpty());
}

TEST(Inspect, X16_SafelySaysWhatIsWrong) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "x.h5";
  std::ofstream(path) << "no field";

  const Result plain = run({"inspect", path}), safe = run({"inspect", path, "--safe"});

  EXPECT_EQ(safe.status, kScriptFailed);
  EXPECT_EQ(safe.err, plain.err);
  EXPECT_THAT(safe.err, StartsWith("moonhalo: open: file \"" + path + "\" is not an HDF5 file"));
}

/// A pipe keeps the reading process waiting, so that it can be ended as a crash or the time limit would.
TEST(Inspect, X16_SafelySurvivesACrashAndAnEndlessLoop) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "pipe.h5";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const std::pair<int, std::string> cases[] = {
      {SIGSEGV, "the HDF5 library crashed on this file (signal 11, Segmentation fault)"},
      {SIGABRT, "the HDF5 library crashed on this file (signal 6, Aborted)"},
      {SIGALRM, "the HDF5 library did not come to an end in 60 s"}};
  for (const auto& [signal, text] : cases) {
    const SignalToChild crash(signal);

    const Result result = run({"inspect", path, "--safe"});

    EXPECT_EQ(result.status, kScriptFailed);
    EXPECT_THAT(result.err, StartsWith("moonhalo: inspect: file \"" + path + "\": " + text));
    EXPECT_THAT(result.err, HasSubstr("\n  fix   "));
  }
}

}  // namespace
}  // namespace moonhalo::scripting
