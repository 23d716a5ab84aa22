// SPDX-License-Identifier: Apache-2.0
// NAME.unfinished-*: those of dead writers are removed by the next one, those of living writers never.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moonhalo/io/base/unfinished_file.h"
#include "moonhalo/io/fields/domain_file.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_unfinished_files {
namespace {

using testing::Folder;

/// A process that writes `value` into a new file and then waits: closes it on request, dies when killed.
class OtherWriter {
 public:
  OtherWriter(const std::string& path, double value) {
    int ready[2], finish[2];
    if (pipe(ready) != 0 || pipe(finish) != 0) throw std::runtime_error("no pipe");
    process_ = fork();
    char byte = 0;
    if (process_ == 0) {
      close(finish[1]);
      File out = open(path, "w");
      out.write("x", at::full({3}, value));
      if (write(ready[1], &byte, 1) == 1 && read(finish[0], &byte, 1) == 1) out.close();
      _exit(0);
    }
    finish_ = finish[1];
    if (read(ready[0], &byte, 1) != 1) throw std::runtime_error("the other writer did not begin");
    for (const int descriptor : {ready[0], ready[1], finish[0]}) close(descriptor);
  }
  ~OtherWriter() { close(finish_); }
  void kill() {
    ::kill(process_, SIGKILL);
    wait();
  }
  void finish() {
    EXPECT_EQ(write(finish_, "", 1), 1);
    wait();
  }

 private:
  void wait() { waitpid(process_, nullptr, 0); }
  pid_t process_ = 0;
  int finish_ = -1;
};

void write_and_close(const std::string& path, const std::string& mode, double value) {
  File out = open(path, mode);
  out.write("x", at::full({3}, value), {.replace = true});
  out.close();
}

double value_in(const std::string& path) { return open(path)["x"].read()[0].item<double>(); }

TEST(UnfinishedFiles, X16_OfDeadWritersAreRemovedByTheNext) {
  for (const char* mode : {"w", "a"}) {
    const Folder folder;
    const std::string path = folder / "out.h5";
    write_and_close(path, "w", 1);
    OtherWriter(path, 2).kill();
    OtherWriter(path, 3).kill();
    ASSERT_EQ(folder.names().size(), 2u);  // the second removed what the first left

    write_and_close(path, mode, 4);

    EXPECT_EQ(folder.names(), std::vector<std::string>{"out.h5"});
    EXPECT_EQ(value_in(path), 4);
  }
}

TEST(UnfinishedFiles, X16_OfLivingWritersStay) {
  const Folder folder;
  const std::string path = folder / "out.h5";
  OtherWriter other(path, 1);
  File mine = open(path, "w");
  mine.write("x", at::full({3}, 2.0));

  write_and_close(path, "w", 3);

  EXPECT_EQ(folder.names().size(), 3u);
  EXPECT_EQ(value_in(path), 3);
  mine.close();
  EXPECT_EQ(value_in(path), 2);
  other.finish();
  EXPECT_EQ(value_in(path), 1);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out.h5"});
}

TEST(UnfinishedFiles, OfOtherFilesAndHostsStay) {
  const Folder folder;
  const std::string path = folder / "out.h5";
  std::string mine;
  { mine = make_unfinished(folder / "also_out.h5", {"write", path}).path; }
  std::vector<std::string> names = {"out.h5", std::filesystem::path(mine).filename(),
                                    "out.h5.unfinished-00000000-00000000", "out.h5.unfinished-notes.txt"};
  for (size_t i = 2; i < names.size(); ++i) std::ofstream(folder / names[i]) << "x";

  write_and_close(path, "w", 1);

  std::sort(names.begin(), names.end());
  EXPECT_EQ(folder.names(), names);
}

}  // namespace
}  // namespace moonhalo::io::test_unfinished_files
