// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/lua_command.h"
#include "moonhalo/scripting/program/one_of.h"

namespace moonhalo::scripting {

namespace {

struct SweepWanted {
  std::string target, space, list, slurm, again, name, device;
  std::vector<std::string> grid, settings, config_files;
  int64_t random = 0, seed = 0, jobs = 1, at_most = 0, index = -1;
  int ranks = 0;
  bool submit = false;
};

void push_sweep_wanted(lua_State* lua, const SweepWanted& wanted) {
  lua_newtable(lua);
  const auto set = [lua](const char* key, const auto& value) { set_field(lua, key, value); };
  set("target", wanted.target);
  set("program", std::filesystem::read_symlink("/proc/self/exe").string());
  set("space", wanted.space);
  set("list", wanted.list);
  set("slurm", wanted.slurm);
  set("again", wanted.again);
  set("name", wanted.name);
  set("device", wanted.device);
  set("grid", wanted.grid);
  set("settings", wanted.settings);
  set("config_files", wanted.config_files);
  set("random", wanted.random);
  set("seed", wanted.seed);
  set("jobs", wanted.jobs);
  set("ranks", static_cast<int64_t>(wanted.ranks));
  set("at_most", wanted.at_most);
  set("index", wanted.index);
  set("submit", wanted.submit);
}

void add_point_options(CLI::App& command, SweepWanted& wanted) {
  const auto repeated = [&](const char* name, std::vector<std::string>& values, const char* what) {
    return command.add_option(name, values, what)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  repeated("--grid", wanted.grid, "Values of a setting, key=a,b,c; all combinations of repeated ones are points");
  command.add_option("--random", wanted.random, "Number of points drawn from --space")->check(CLI::PositiveNumber);
  command.add_option("--space", wanted.space, "Lua file that returns {key = mh.space...} for --random")
      ->check(CLI::ExistingFile);
  command.add_option("--list", wanted.list, "File with one JSON object of settings a line: the points")
      ->check(CLI::ExistingFile);
  command.add_option("--seed", wanted.seed, "Seed of --random (default: 0)")->check(CLI::NonNegativeNumber);
  repeated("--set", wanted.settings, "A configuration value of all points, key=value");
  repeated("--config", wanted.config_files, "Configuration table of all points")->check(CLI::ExistingFile);
}

}  // namespace

void add_sweep_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("sweep", "Run a script with many settings, each in a run folder of its own");
  const auto wanted = std::make_shared<SweepWanted>();
  command->add_option("target", wanted->target, "The Lua script, or the folder of a sweep to continue")
      ->required()
      ->check(CLI::ExistingPath);
  add_point_options(*command, *wanted);
  command->add_option("--jobs", wanted->jobs, "Points that run at the same time (default: 1)")
      ->check(CLI::PositiveNumber);
  add_ranks_option(*command, wanted->ranks, "Ranks of each point");
  command->add_option("--device", wanted->device, "cpu (default) or cuda");
  command->add_option("--name", wanted->name, "Of the sweep's folder (default: the script's name)");
  command->add_option("--slurm", wanted->slurm, "Write an array job with these options of sbatch instead of running");
  command->add_option("--at-most", wanted->at_most, "With --slurm: points at the same time")
      ->check(CLI::PositiveNumber);
  command->add_flag("--submit", wanted->submit, "With --slurm: submit the job, too");
  command->add_option("--index", wanted->index, "Run only this point of a sweep's folder, from 0")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--again", wanted->again,
                   "Of a sweep's folder: also run points that failed, or that say they are running on another host")
      ->type_name("failed|running")
      ->check(one_of({"failed", "running"}));
  command->callback([wanted, &action] {
    action = [wanted] {
      return run_lua_command("internal.sweep", [&](lua_State* lua) { push_sweep_wanted(lua, *wanted); });
    };
  });
}

}  // namespace moonhalo::scripting
