// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/job_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>

#include "moonhalo/engine/launch/rendezvous.h"
#include "tests/support/folder.h"
#include "tests/support/oracle.h"

namespace moonhalo::test_job_key {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using Variables = std::map<std::string, std::string>;

std::string key_of(const Variables& variables) {
  return job_key([&](const char* variable) {
    const auto found = variables.find(variable);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const std::string kKey = "0123456789abcdef0123456789abcdef";

class JobKey : public ::testing::Test {
 protected:
  std::string write(const std::string& text, mode_t mode) const {
    std::ofstream(path_, std::ios::binary) << text;
    ::chmod(path_.c_str(), mode);
    return path_;
  }
  const testing::Folder folder_;
  const std::string path_ = folder_ / "job_key";
};

TEST_F(JobKey, Y21_IsOfAVariableOrOfAFileOfThisUser) {
  EXPECT_EQ(key_of({}), "");
  EXPECT_EQ(key_of({{"MOONHALO_JOB_KEY", kKey}}), kKey);
  EXPECT_EQ(key_of({{"MOONHALO_JOB_KEY_FILE", write(kKey + "\n", 0600)}}), kKey);
  EXPECT_EQ(key_of({{"MOONHALO_JOB_KEY_FILE", write(kKey, 0400)}}), kKey);
}

TEST_F(JobKey, Y21_IsRefusedWhereOthersKnowItOrMayGuessIt) {
  for (const mode_t mode : {0640, 0604, 0620, 0666}) {
    EXPECT_THAT(message_of([&] {
                  key_of({{"MOONHALO_JOB_KEY_FILE", write(kKey, mode)}});
                }),
                HasSubstr("launch: others may read or change the file of the job key\n  have  MOONHALO_JOB_KEY_FILE="));
  }
  const std::string short_key = message_of([] { key_of({{"MOONHALO_JOB_KEY", "secret"}}); });
  EXPECT_THAT(short_key, HasSubstr("launch: the job key can be guessed\n  have  6 bytes"));
  EXPECT_THAT(short_key, Not(HasSubstr("secret")));
  EXPECT_THAT(message_of([&] {
                key_of({{"MOONHALO_JOB_KEY_FILE", write("\n\n", 0600)}});
              }),
              HasSubstr("can be guessed"));
  EXPECT_THAT(message_of([&] {
                key_of({{"MOONHALO_JOB_KEY", kKey}, {"MOONHALO_JOB_KEY_FILE", path_}});
              }),
              HasSubstr("launch: two job keys"));
  EXPECT_THAT(message_of([&] {
                key_of({{"MOONHALO_JOB_KEY_FILE", path_ + "x"}});
              }),
              HasSubstr("launch: cannot read the job key\n  have  MOONHALO_JOB_KEY_FILE=" + path_ + "x: No such file"));
  EXPECT_THAT(message_of([&] {
                key_of({{"MOONHALO_JOB_KEY_FILE", folder_.path().string()}});
              }),
              HasSubstr("launch: the job key is not in a file"));
}

// A pipe without a writer would hold the rank; the file of another user is that user's to change.
TEST_F(JobKey, Y21_IsOfAFileThatIsThisUsers) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] {
                key_of({{"MOONHALO_JOB_KEY_FILE", path_}});
              }),
              HasSubstr("launch: the job key is not in a file"));
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "root alone can give a file away";
  write(kKey, 0600);
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_THAT(message_of([&] {
                key_of({{"MOONHALO_JOB_KEY_FILE", path_}});
              }),
              HasSubstr("launch: others may read or change the file of the job key"));
}

TEST(Seal, Y21_OpensWhatWasClosedForTheEntryAlone) {
  const Seal seal(kKey, "7.1"), other(kKey + "x", "7.1"), later(kKey, "7.2"), none("", "7.1");
  const std::string closed = seal.close("rank1", "n1 40000");
  EXPECT_EQ(seal.open("rank1", closed, "n1:29500"), "n1 40000");
  EXPECT_EQ(none.open("rank1", none.close("rank1", "n1 40000"), ""), "n1 40000");
  EXPECT_EQ(none.name("rank1"), "moonhalo/7.1/rank1");
  EXPECT_THAT(seal.name("rank1"), Not(HasSubstr("rank1")));
  EXPECT_NE(seal.name("rank1"), seal.name("rank2"));
  EXPECT_NE(seal.name("rank1"), other.name("rank1"));
  std::string changed = closed;
  changed.back() ^= 1;
  for (const auto& [which, entry, text] : {std::tuple{&other, "rank1", closed},
                                           {&later, "rank1", closed},
                                           {&seal, "rank2", closed},
                                           {&seal, "rank1", changed},
                                           {&seal, "rank1", std::string("n1 40000")},
                                           {&seal, "rank1", std::string()}}) {
    EXPECT_THAT(message_of([&] { which->open(entry, text, "n1:29500"); }),
                HasSubstr("launch: the store at n1:29500 holds what no rank of this job has written"));
  }
}

TEST(Printable, Y21_NothingSteersATerminal) {
  EXPECT_EQ(printable("n1, process 7\n  have  x"), "n1, process 7\n  have  x");
  EXPECT_EQ(printable("\x1b[31mFORGED\x1b[0m\r\a\x7f\xc2\x9b"
                      "1m\t"),
            "?[31mFORGED?[0m?????1m?");
  EXPECT_EQ(printable(std::string(5000, 'x')).size(), 2000u);
}

TEST(OpenMeeting, Y21_IsWarnedOfWhereOthersMayCome) {
  EXPECT_THAT(open_meeting({"192.0.2.1", 29500, true, ""}),
              HasSubstr("the ranks come to 192.0.2.1:29500 without a job key"));
  EXPECT_EQ(open_meeting({"192.0.2.1", 29500, true, "", "", kKey}), "");
  EXPECT_EQ(open_meeting({"127.0.0.1", 29500, true, ""}), "");
  EXPECT_EQ(open_meeting({"localhost", 29500, true, ""}), "");
}

}  // namespace
}  // namespace moonhalo::test_job_key
