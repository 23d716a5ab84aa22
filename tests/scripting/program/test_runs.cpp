// SPDX-License-Identifier: Apache-2.0
// Y11: run folders, and runs that are killed and resumed. fork() copies this process, so that a run costs
// milliseconds. MOONHALO_KILLS=200 kills more often, MOONHALO_KILL_SEED=N at the moments of an earlier run.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_runs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

/// Trains for five epochs of four steps, and fails, kills itself or sleeps in a step.
constexpr const char* kTrain = R"(local mh = require "moonhalo"
local nn = mh.nn
local cfg = mh.config {lr = 0.1, epochs = 5, fail_at = 0, kill_at = 0, term_at = 0}
mh.manual_seed(3)
local run = mh.run {keep = {by = "valid/loss", best = 2}, stop = {by = "valid/loss", patience = 50}}
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"x"})
local net = nn.Linear(6, 1):to("float64")
local opt = mh.optim.AdamW(net:parameters(), {lr = cfg.lr})
local sch = mh.optim.lr_scheduler.CosineAnnealingLR(opt, {T_max = cfg.epochs * 4})
for epoch = run:resume {model = net, optimizer = opt, schedule = sch} or 0, cfg.epochs - 1 do
  local loss
  for k = run.step % 4 + 1, 4 do
    local x = mh.distribute_tensor(mh.rand({10, 6}, {dtype = "float64"}), mesh, {mh.Shard(0)})
    loss = (net(x) - x:sum {1}:unsqueeze(1)):square():mean()
    opt:zero_grad() loss:backward() opt:step() sch:step()
    if run.step + 1 == cfg.fail_at then mh.barrier() error("bad luck") end
    if run.step + 1 == cfg.kill_at then os.execute("kill -9 $PPID") end
    if run.step + 1 == cfg.term_at and mh.rank() == 0 then os.execute("kill $PPID") end
    if run:step_done {["train/loss"] = loss} then return end
  end
  if run:epoch_done {["valid/loss"] = loss} then break end
end
print("epochs", run.epoch)
)";

class Runs : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // a copy of this process has none of OpenMP's threads, and would wait for them
    std::ofstream(script_) << kTrain;
  }

  /// The program in a copy of this process, which a signal may end. Returns waitpid's status.
  int run_apart(const std::vector<std::string>& arguments, int kill_after = 0, rlim_t largest_file = RLIM_INFINITY) {
    const pid_t child = fork();
    if (child == 0) {
      at::set_num_threads(1);  // makes a new pool of threads, at which two ranks at once would fail
      std::freopen((own_ / "output").c_str(), "w", stdout);
      std::freopen((own_ / "errors").c_str(), "w", stderr);
      const rlimit limit{largest_file, RLIM_INFINITY};
      std::signal(SIGXFSZ, SIG_IGN);
      if (largest_file != RLIM_INFINITY) setrlimit(RLIMIT_FSIZE, &limit);
      std::vector<std::string> words = arguments;
      words.insert(words.begin(), "moonhalo");
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      const int status = command_line(static_cast<int>(argv.size()), argv.data());
      std::fflush(nullptr);
      _exit(status);
    }
    if (kill_after > 0) {
      usleep(static_cast<useconds_t>(kill_after));
      kill(child, SIGKILL);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }
  int train(const std::string& parent, const std::vector<std::string>& more, int kill_after = 0) {
    std::vector<std::string> words = {"run", script_, "--run", own_ / parent + "/train"};
    words.insert(words.end(), more.begin(), more.end());
    return run_apart(words, kill_after);
  }

  /// Another script, on `ranks`, in a run folder below `parent`.
  int run_other(const std::string& text, const std::string& parent, std::vector<std::string> more = {}) {
    std::ofstream(own_ / "other.lua") << "local mh = require 'moonhalo'\n" << text;
    std::vector<std::string> words = {"run", own_ / "other.lua", "--run", own_ / parent + "/other"};
    words.insert(words.end(), more.begin(), more.end());
    return run_apart(words);
  }

  std::vector<std::string> folders(const std::string& parent) const {
    std::vector<std::string> found;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(own_ / parent, none))
      found.push_back(entry.path().string());
    return found;
  }
  /// The only run of a folder.
  std::string folder(const std::string& parent) const {
    const auto found = folders(parent);
    EXPECT_EQ(found.size(), 1) << parent << "\n" << errors();
    return found.at(0);
  }
  std::string errors() const { return io::read_file("test", own_ / "errors"); }

  static Json run_json(const std::string& run) { return Json::parse(io::read_file("test", run + "/run.json")); }
  /// The records that are not replaced, without their seconds.
  static std::vector<Json> metrics(const std::string& run, int* replaced = nullptr) {
    std::ifstream file(run + "/metrics.jsonl");
    std::vector<Json> records;
    for (std::string line; std::getline(file, line);) {
      if (file.eof()) break;  // half a line, which a kill has left
      Json record = Json::parse(line);
      record.erase("seconds");
      if (!record.contains("replaced")) {
        records.push_back(record);
      } else if (replaced) {
        ++*replaced;
      }
    }
    return records;
  }
  static void expect_near(const std::vector<Json>& one, const std::vector<Json>& other) {
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      for (const auto& [name, value] : one[i].items())
        EXPECT_NEAR(value.get<double>(), other[i].at(name).get<double>(), 1e-12) << i << " " << name;
    }
  }

  const moonhalo::testing::Folder own_;
  const std::string script_ = own_.path() / "train.lua";
};

TEST_F(Runs, Y11_AFolderHasSettingsSourceMetricsAndOutput) {
  std::ofstream(own_ / "more.lua") << "return {lr = 0.05}";
  ASSERT_EQ(train("runs", {"--ranks", "2", "--config", own_ / "more.lua", "--set", "epochs=2"}), 0) << errors();

  const std::string run = folder("runs");
  EXPECT_TRUE(std::regex_match(run, std::regex(R"(.*/\d{4}-\d\d-\d\d_train_[0-9a-f]{4})"))) << run;
  const Json facts = run_json(run);
  EXPECT_EQ(facts["status"], "done");
  EXPECT_EQ(facts["ranks"], 2);
  EXPECT_EQ(facts["seed"], 3);
  EXPECT_EQ(facts["step"], 8);
  EXPECT_EQ(facts["settings"]["lr"], 0.05);
  EXPECT_EQ(facts["sources"], Json({{"epochs", "--set"}, {"lr", own_ / "more.lua"}}));
  EXPECT_EQ(facts["best"].size(), 2);
  for (const char* name : {"command", "script", "script_crc32c", "launcher", "hosts", "devices", "versions", "started",
                           "ended", "process"})
    EXPECT_TRUE(facts.contains(name)) << name;
  EXPECT_EQ(metrics(run).size(), 10);
  EXPECT_EQ(metrics(run).back()["epoch"], 2);
  EXPECT_THAT(io::read_file("test", run + "/metrics.csv"),
              ::testing::StartsWith("step,epoch,seconds,train/loss,valid/"));
  EXPECT_EQ(io::read_file("test", run + "/output.txt"), "epochs\t2\n");
  EXPECT_EQ(io::read_file("test", run + "/source/train.lua"), kTrain);
}

TEST_F(Runs, Y11_TwentyRunsOfOneSecondHaveTwentyFolders) {
  std::ofstream(own_ / "short.lua") << "require('moonhalo').log{a = 1}";
  std::vector<pid_t> children;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const Result result = run({"run", own_ / "short.lua", "--run", own_ / "many/short"});
      std::fputs(result.err.c_str(), stderr);
      _exit(result.status);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }

  EXPECT_EQ(folders("many").size(), 20);
  for (const std::string& run : folders("many")) EXPECT_EQ(metrics(run).size(), 1) << run;
}

TEST_F(Runs, Y11_AFullDiskEndsTheRunWithOneError) {
  std::ofstream(own_ / "long.lua")
      << "local mh = require 'moonhalo'\n"
         "for step = 1, 1e6 do mh.log{step = step, text = ('x'):rep(1000)} mh.barrier() end";
  const int status = run_apart({"run", own_ / "long.lua", "--ranks", "2", "--run", own_ / "full/long"}, 0, 100000);

  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kScriptFailed);
  EXPECT_THAT(errors(),
              HasSubstr("long.lua:2: log: the disk refused '" + folder("full") + "/metrics.jsonl': File too"));
  EXPECT_EQ(errors().find("disk refused"), errors().rfind("disk refused"));
}

// A disk that has no space for another run.json when the run ends: the run failed, and no signal killed it.
TEST_F(Runs, Y11_AFullDiskIsNoKill) {
  const std::string fills =
      "local file = io.open(mh.run().folder .. '/run.json')\n"
      "os.execute('prlimit --pid $PPID --fsize=' .. #file:read('a') - 10)\n";
  EXPECT_NE(run_other(fills + "error('bad luck', 0)", "full"), 0);
  EXPECT_THAT(errors(), HasSubstr("bad luck"));
  EXPECT_EQ(run_json(folder("full"))["status"], "failed");
  EXPECT_NE(run_other(fills, "end"), 0);
  EXPECT_THAT(errors(), HasSubstr("the disk refused '" + folder("end") + "/run.json': File too"));
  EXPECT_EQ(run_json(folder("end"))["status"], "failed");
}

TEST_F(Runs, Y11_WrongOptionsAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"mh.run{nmae = 'x'}", "run: unknown option 'nmae'; did you mean 'name'?"},
      {"mh.run{name = 3}", "run: name is 3, expected a string"},
      {"mh.run{name = '/'}", "run: '/' is not a name of a run"},
      {"mh.run{keep = {best = 2}}", "run: keep.by is false, expected the name of a metric"},
      {"mh.run{keep = {by = 'a', best = 0}}", "run: keep.best is 0, expected an integer of at least 1"},
      {"mh.run{stop = {by = 'a', patient = 2}}", "did you mean 'patience'?"},
      {"mh.run{stop = {by = 'a', mode = 'least'}}", "stop.mode"},
      {"mh.run() mh.run()", "run: this run has a folder"},
      {"mh.run():resume(mh.nn.Linear(2, 2))", "run: resume takes a table of entries by name"},
      {"mh.run():resume{run = 1}", "run: 'run' cannot be the name of an entry"},
      {"mh.run():save()", "run: nothing to save is known"},
      {"mh.run{keep = {by = 'loss'}}:epoch_done{los = 1}", "run: epoch_done has no metric 'loss'; did you mean 'los'?"},
      {"print(mh.run().foldre)", "Run: no field or method 'foldre'; did you mean 'folder'?"},
      {"local r = mh.run() r:finish() r:step_done()", "is finished"},
  };
  for (const auto& [code, expected] : cases) {
    std::ofstream(own_ / "wrong.lua") << "local mh, run = require 'moonhalo', require('moonhalo').run\n"
                                         "mh.run = function(o) o = o or {} o.folder = o.folder or '"
                                      << (own_ / "wrong") << "' return run(o) end\nlocal x = (function() " << code
                                      << " end)()";
    const Result result = run({"run", own_ / "wrong.lua", "--ranks", "2"});
    EXPECT_EQ(result.status, kScriptFailed) << code;
    EXPECT_THAT(result.err, HasSubstr(expected)) << code;
  }
}

TEST_F(Runs, Y11_AFailureIsInTheFolder) {
  EXPECT_EQ(WEXITSTATUS(train("runs", {"--ranks", "3", "--set", "fail_at=6"})), kScriptFailed);

  const Json facts = run_json(folder("runs"));
  EXPECT_EQ(facts["status"], "failed");
  EXPECT_THAT(facts["error"].get<std::string>(), HasSubstr("train.lua:16: bad luck"));
  EXPECT_THAT(io::read_file("test", folder("runs") + "/output.txt"), HasSubstr("bad luck"));
}

// Rank 0 waits or computes meanwhile, and gets an error that says so.
TEST_F(Runs, Y11_TheFirstErrorIsInTheFolderOfWhicheverRank) {
  struct Case {
    const char *name, *fails, *meanwhile, *error;
    int status;
  };
  const Case cases[] = {
      {"waits", "error('bad luck', 0)", "mh.barrier()", "rank 1: bad luck", kScriptFailed},
      {"computes", "error('bad luck', 0)", "while true do end", "rank 1: bad luck", kScriptFailed},
      {"leaves", "os.exit(7)", "mh.barrier()", "rank 1: os.exit(7)", 7},
      {"differs", "mh.init_device_mesh('cpu', {2})", "mh.barrier()", "ranks 0 and 1 of this group make different calls",
       kScriptFailed},
  };
  for (const Case& one : cases) {
    const std::string script = "local run = mh.run() run:step_done{loss = 0.5}\nmh.barrier()\n" +
                               std::string("if mh.rank() == 1 then ") + one.fails + " end\n" + one.meanwhile +
                               "\nmh.barrier()";
    EXPECT_EQ(WEXITSTATUS(run_other(script, one.name, {"--ranks", "2"})), one.status) << one.name << errors();

    const Json facts = run_json(folder(one.name));
    EXPECT_THAT(facts["error"].get<std::string>(), HasSubstr(one.error));
    EXPECT_EQ(facts["status"], "failed") << one.name;
    EXPECT_EQ(facts["exit_status"], one.status) << one.name;
    EXPECT_EQ(facts["metrics"]["loss"]["last"], 0.5) << one.name;
    EXPECT_FALSE(std::filesystem::exists(folder(one.name) + "/failing")) << one.name;
    EXPECT_THAT(io::read_file("test", folder(one.name) + "/output.txt"), HasSubstr(facts["error"].get<std::string>()));
  }
}

TEST_F(Runs, Y11_TheFirstErrorOfAResumedRunIsInTheFolder) {
  const std::string begin = "mh.run():resume {}\nmh.barrier()\nif mh.rank() == 1 then error('",
                    end = "', 0) end\nmh.barrier()";

  EXPECT_EQ(WEXITSTATUS(run_other(begin + "bad luck" + end, "twice", {"--ranks", "2"})), kScriptFailed);
  EXPECT_EQ(WEXITSTATUS(run_other(begin + "worse luck" + end, "twice", {"--ranks", "2", "--resume"})), kScriptFailed);

  EXPECT_EQ(run_json(folder("twice"))["error"], "rank 1: worse luck") << errors();
}

TEST_F(Runs, Y11_AResumedRunGivesTheMetricsOfOneThatWasNotInterrupted) {
  ASSERT_EQ(train("whole", {"--ranks", "2"}), 0) << errors();
  const auto expected = metrics(folder("whole"));
  ASSERT_EQ(expected.size(), 25);
  const std::pair<const char*, const char*> cases[] = {
      {"fail_at=10", "3"}, {"kill_at=10", "2"}, {"term_at=10", "2"}, {"term_at=6", "3"}};
  for (const auto& [interruption, ranks] : cases) {
    SCOPED_TRACE(std::string(interruption) + ", resumed on " + ranks);
    const std::string parent = std::string(interruption) + ranks;
    const int status = train(parent, {"--ranks", "2", "--set", interruption});
    EXPECT_EQ(status == 0, interruption[0] == 't');
    if (interruption[0] == 't') {
      EXPECT_EQ(run_json(folder(parent))["ended_by"], "SIGTERM");
      EXPECT_EQ(run_json(folder(parent))["step"], metrics(folder(parent)).back()["step"]);
    }

    const std::string off = std::string(interruption).substr(0, 7) + "=0";
    ASSERT_EQ(train(parent, {"--ranks", ranks, "--resume", "--set", off}), 0) << errors();

    int replaced = 0;
    const auto found = metrics(folder(parent), &replaced);
    EXPECT_EQ(replaced, interruption[0] == 't' ? 0 : 1);
    if (*ranks == '2') EXPECT_EQ(found, expected);
    expect_near(found, expected);
    EXPECT_EQ(run_json(folder(parent))["resumed"].size(), 1);
    EXPECT_EQ(run_json(folder(parent))["best"].size(), 2);
  }
}

TEST_F(Runs, Y11_AKillAtAnyMomentLeavesReadableFilesAndARunToResume) {
  const char* wanted = std::getenv("MOONHALO_KILLS");
  const char* seed_text = std::getenv("MOONHALO_KILL_SEED");
  const int kills = wanted ? std::atoi(wanted) : 6;
  const unsigned seed = seed_text ? static_cast<unsigned>(std::atoll(seed_text)) : std::random_device()();
  std::printf("MOONHALO_KILL_SEED=%u\n", seed);
  std::fflush(stdout);
  std::mt19937 random(seed);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(train("whole", {}), 0) << errors();
  const auto taken = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const auto expected = metrics(folder("whole"));

  int round = 0;
  for (int i = 0; i < kills; ++i) {
    const std::string parent = "killed" + std::to_string(round);
    const bool begun = !folders(parent).empty() && std::filesystem::exists(folder(parent) + "/run.json");
    if (!begun) std::filesystem::remove_all(own_ / parent);
    const int moment = 1 + static_cast<int>(random() % static_cast<unsigned>(taken.count()));
    SCOPED_TRACE("kill " + std::to_string(i) + " after " + std::to_string(moment) + " us");
    const int status = train(parent, begun ? std::vector<std::string>{"--resume"} : std::vector<std::string>{}, moment);
    ASSERT_TRUE(WIFSIGNALED(status) || status == 0) << errors();
    if (folders(parent).empty()) continue;
    if (std::filesystem::exists(folder(parent) + "/run.json")) run_json(folder(parent));
    metrics(folder(parent));  // an exception where a line is not JSON
    if (status != 0) continue;
    EXPECT_EQ(metrics(folder(parent)), expected);
    ++round;
  }
  const std::string last = "killed" + std::to_string(round);
  if (folders(last).empty() || !std::filesystem::exists(folder(last) + "/run.json")) return;
  ASSERT_EQ(train(last, {"--resume"}), 0) << errors();
  EXPECT_EQ(metrics(folder(last)), expected);
}

TEST_F(Runs, Y11_LinesOfTheResumedProcessAreNotReplaced) {
  const char* script = R"(mh.log {before = 1}
local run = mh.run()
run:resume {}
mh.log {step = 1, a = 1}
mh.log {step = 2, a = mh.run_info().resume and 3 or 2}
)";
  ASSERT_EQ(run_other(script, "lines"), 0) << errors();
  ASSERT_EQ(run_other(script, "lines", {"--resume"}), 0) << errors();

  int replaced = 0;
  EXPECT_THAT(metrics(folder("lines"), &replaced),
              ElementsAre(Json({{"before", 1}}), Json({{"a", 1}, {"step", 1}}), Json({{"a", 3}, {"step", 2}})));
  EXPECT_EQ(replaced, 3);
}

TEST_F(Runs, Y11_TheLastStepIsThatOfTheEnd) {
  ASSERT_EQ(run_other("local run = mh.run() for _ = 1, 3 do run:step_done{a = 1} end", "counted"), 0) << errors();
  ASSERT_EQ(run_other("for step = 1, 7 do mh.log{step = step, epoch = 2} end", "logged"), 0) << errors();
  const char* fails = "local run = mh.run() run:epoch_done() run:step_done() error('bad luck')";
  ASSERT_EQ(WEXITSTATUS(run_other(fails, "failed")), kScriptFailed);

  EXPECT_EQ(run_json(folder("counted"))["step"], 3);
  EXPECT_EQ(run_json(folder("logged"))["step"], 7);
  EXPECT_EQ(run_json(folder("logged"))["epoch"], 2);
  EXPECT_EQ(run_json(folder("failed"))["step"], 1);
}

TEST_F(Runs, Y11_NumbersThatAreNotFiniteAreInTheFolder) {
  const char* script = R"(mh.log {a = 2, b = -1 / 0, c = 0 / 0, deep = {er = 3}}
mh.log {a = 1 / 0, b = 4}
mh.run():resume {}
)";
  ASSERT_EQ(run_other(script, "infinite"), 0) << errors();
  const Json once = run_json(folder("infinite"))["metrics"];
  ASSERT_EQ(run_other(script, "infinite", {"--resume"}), 0) << errors();

  EXPECT_EQ(once["a"], Json({{"last", "inf"}, {"least", 2}, {"greatest", 2}}));
  EXPECT_EQ(once["b"], Json({{"last", 4}, {"least", 4}, {"greatest", 4}}));
  EXPECT_EQ(once["c"], Json({{"last", "nan"}}));
  EXPECT_EQ(once["deep.er"]["last"], 3);
  EXPECT_EQ(metrics(folder("infinite")).size(), 2);
}

TEST_F(Runs, Y11_ASignalAtTheEndOfAnEpochSavesOnce) {
  const char* script = R"(local save = mh.checkpoint.save
mh.checkpoint.save = function(path, ...)
  if mh.rank() == 0 then print(path:match "[^/]*$") end
  return save(path, ...)
end
local run = mh.run()
run:resume {net = mh.nn.Linear(1, 1)}
run:step_done()
if mh.rank() == 0 then os.execute("kill $PPID") end
mh.barrier()
print(run:epoch_done(), run.ended_by)
)";
  ASSERT_EQ(run_other(script, "once", {"--ranks", "1"}), 0) << errors();

  EXPECT_EQ(io::read_file("test", folder("once") + "/output.txt"), "last\ntrue\tSIGTERM\n");
  EXPECT_EQ(run_json(folder("once"))["status"], "stopped");
  EXPECT_EQ(run_json(folder("once"))["epoch"], 1);
}

TEST_F(Runs, Y11_ModulesAreLookedForOnce) {
  std::ofstream(own_ / "model.lua") << "return 3";
  const char* script = R"(package.path = arg[0]:match "^.*/" .. "?.lua"
local count, search = 0, package.searchpath
package.searchpath = function(...)
  count = count + 1
  return search(...)
end
local run = mh.run()
require "model"
run:epoch_done()
local first = count
run:epoch_done()
print(first > 0, count - first)
)";
  ASSERT_EQ(run_other(script, "searched"), 0) << errors();

  EXPECT_EQ(io::read_file("test", folder("searched") + "/output.txt"), "true\t0\n");
  EXPECT_EQ(io::read_file("test", folder("searched") + "/source/model.lua"), "return 3");
}

TEST_F(Runs, Y11_WithoutItsFilesARunIsNotThere) {
  const char* script = R"(local open = io.open
io.open = function(path, ...)
  if path:find "metrics" then return nil, "not today" end
  return open(path, ...)
end
print(pcall(mh.run, {folder = arg[0]:match "^.*/" .. "/none"}))
mh.log {a = 1}
)";
  std::ofstream(own_ / "other.lua") << "local mh = require 'moonhalo'\n" << script;
  const Result result = run({"run", own_ / "other.lua"});

  EXPECT_EQ(result.status, kDone) << result.err;
  EXPECT_THAT(result.out, HasSubstr("false\t")) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cannot write the metrics: not today"));
}

// Otherwise the table of runs would show nothing of a script that ends no epoch.
TEST_F(Runs, Y11_RecordsAreInRunJsonBeforeTheEnd) {
  const char* script = R"(require("moonhalo.internal.run_log").save_interval = 0
mh.log {step = 5, a = 2}
os.execute "kill -9 $PPID"
)";
  const int status = run_other(script, "early");

  ASSERT_TRUE(WIFSIGNALED(status)) << errors();
  EXPECT_EQ(run_json(folder("early"))["step"], 5);
  EXPECT_EQ(run_json(folder("early"))["metrics"]["a"]["last"], 2);
}

TEST_F(Runs, Y11_WhatCannotBeResumedIsAnErrorOnAllRanks) {
  EXPECT_EQ(WEXITSTATUS(train("none", {"--ranks", "2", "--resume"})), kScriptFailed);
  EXPECT_THAT(errors(), HasSubstr("ranks 0-1: run: no run 'train' to resume"));
  std::ofstream(own_ / "other.lua") << "local mh = require 'moonhalo'\nlocal run = mh.run()\nrun:step_done()";
  ASSERT_EQ(run_apart({"run", own_ / "other.lua", "--run", own_ / "o/other"}), 0) << errors();
  EXPECT_EQ(WEXITSTATUS(run_apart({"run", own_ / "other.lua", "--run", own_ / "o/other", "--resume"})), kScriptFailed);
  EXPECT_THAT(errors(), HasSubstr("other.lua:3: run: step_done before the run is resumed"));
  EXPECT_EQ(WEXITSTATUS(run_apart({"run", own_ / "other.lua", "--resume", own_ / "o"})), kScriptFailed);
  EXPECT_THAT(errors(), HasSubstr("is not the folder of a run"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_runs
