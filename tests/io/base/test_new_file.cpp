// SPDX-License-Identifier: Apache-2.0
// Files that appear when they are complete: who else may write them, and which links they follow.
#include "moonhalo/io/base/new_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moonhalo/io/base/png.h"
#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/safetensors.h"
#include "tests/io/support/raw_file.h"

namespace moonhalo::io::test_new_file {
namespace {

using testing::Folder;

struct NewFiles : ::testing::Test {
  Folder folder;
  std::string path = folder / "out";
  static std::string text_of(const std::string& file) { return read_file("test", file); }
};

TEST_F(NewFiles, Y21_FollowNoPlantedLink) {
  const std::string victim = folder / "victim";
  std::ofstream(victim) << "precious";
  const std::pair<const char*, std::function<void()>> writers[] = {
      {"safetensors",
       [&] {
         save_safetensors(path, {{"x", at::ones({2})}});
       }},
      {"picture",
       [&] {
         write_png(path, at::zeros({2, 2, 3}, at::kByte));
       }},
      {"text",
       [&] {
         NewFile file("test", path);
         file.write("text", 4);
         file.finish();
       }},
      {"places", [&] { PositionedFile::create("test", path, 4).write_at("text", 4, 0); }},
  };
  for (const auto& [name, write] : writers) {
    SCOPED_TRACE(name);
    for (const char* ending : {"", ".partial", ".unfinished", ".tmp"})
      std::filesystem::create_symlink(victim, path + ending);
    write();
    EXPECT_EQ(text_of(victim), "precious");
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path)));
    for (const char* ending : {"", ".partial", ".unfinished", ".tmp"}) std::filesystem::remove(path + ending);
    EXPECT_EQ(folder.names(), std::vector<std::string>{"victim"});
  }
}

TEST_F(NewFiles, OfOnePathDoNotMix) {
  auto first = std::make_unique<NewFile>("test", path), second = std::make_unique<NewFile>("test", path);
  NewFile dropped("test", path);
  first->write("aaaa", 4);
  second->write("b", 1);
  dropped.write("c", 1);
  first->finish();
  EXPECT_EQ(text_of(path), "aaaa");
  second->write("b", 1);
  second->finish();
  EXPECT_EQ(text_of(path), "bb");
  EXPECT_EQ(folder.names().size(), 2);
}

TEST_F(NewFiles, OfDeadWritersAreRemovedByTheNext) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder / "");
  for (const std::string& name : {path, std::string("here")}) {
    const pid_t other = fork();
    if (other == 0) {
      NewFile file("test", name);
      file.write("half", 4);
      _exit(0);
    }
    waitpid(other, nullptr, 0);
    EXPECT_EQ(folder.names().size(), 1);
    NewFile("test", name).finish();
    EXPECT_EQ(folder.names(), std::vector<std::string>{std::filesystem::path(name).filename().string()});
    std::filesystem::remove(name);
  }
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace moonhalo::io::test_new_file
