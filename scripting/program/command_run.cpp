// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <tuple>

#include "moonhalo/engine/profile/nvtx.h"
#include "moonhalo/engine/profile/rank_record.h"
#include "moonhalo/scripting/bind/deterministic.h"
#include "moonhalo/scripting/bind/nan_watch.h"
#include "moonhalo/scripting/bind/profile.h"
#include "moonhalo/scripting/bind/run.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/script_exit.h"
#include "moonhalo/scripting/core/strict_globals.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

/// A word that is not an option would have no effect: nothing says whether it is a setting or the script's.
void refuse_words(const std::vector<std::string>& words, bool profiles) {
  if (words.empty()) return;
  const std::string& word = words.front();
  const std::string as_folder = profiles ? "write --profile=" + word + " to name the folder of the profile, or " : "";
  const bool setting = word.find('=') != std::string::npos;
  throw UsageError("run: '" + word + "' is neither an option nor behind --\n  have  " + word + "\n  fix   " +
                   as_folder +
                   (setting ? "give --set " + word + " to mh.config, or put -- before it: arg[1] of the script"
                            : "put -- before it: arg[1] of the script"));
}

/// Runs the script, and writes how it ended into the run folder, if there is one.
void run_in_folder(lua_State* lua) {
  try {
    run_script(lua, 0);
    end_run_profile(lua);
  } catch (const ScriptExit& exit) {
    end_run(lua, exit.status(), exit.status() == 0 ? "" : "os.exit(" + std::to_string(exit.status()) + ")");
    throw;
  } catch (const std::exception& error) {
    lua_sethook(lua, nullptr, 0, 0);  // that of other ranks' failures would stop this, too
    end_run(lua, kScriptFailed, plain_message(error), follows_from_another_rank(lua, error));
    throw;
  }
  end_run(lua, kDone, "");
}

/// "3:5"
std::pair<int64_t, int64_t> parse_steps(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string first = text.substr(0, colon), last = colon == std::string::npos ? first : text.substr(colon + 1);
  const auto is_number = [](const std::string& digits) {
    return !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == std::string::npos;
  };
  if (!is_number(first) || !is_number(last) || std::stol(first) < 1 || std::stol(last) < std::stol(first))
    throw CLI::ValidationError("--profile-steps", "'" + text + "' is not of the form FIRST:LAST, such as 3:5");
  if (std::stol(last) > RankRecord::kLastStep)
    throw CLI::ValidationError(
        "--profile-steps",
        "step " + last + " is above " + std::to_string(RankRecord::kLastStep) + ", the largest number in a profile");
  return {std::stol(first), std::stol(last)};
}

std::shared_ptr<ProfileRequest> add_profile_options(CLI::App& command) {
  const auto profile = std::make_shared<ProfileRequest>();
  command.add_flag("--profile{profile}", profile->folder,
                   "Record where the time goes, for moonhalo profile FOLDER; --profile=FOLDER for another folder, "
                   "--profile=nvtx for NVTX ranges, too (Nsight Systems; needs CUDA)");
  command
      .add_option_function<std::string>(
          "--profile-steps",
          [profile](const std::string& text) { std::tie(profile->first, profile->last) = parse_steps(text); },
          "The training steps that --profile records, FIRST:LAST (default: 3:5; at most 65535)")
      ->needs("--profile");
  return profile;
}

/// Makes a request of what --profile was given, "nvtx" included.
void check_profile(ProfileRequest& request, const SessionOptions& options) {
  if (request.folder.empty()) return;
  if (options.backend == "fake")
    throw UsageError(
        "--profile: a dry run writes no files\n  have  --backend fake\n  fix   leave --profile out; a script may print "
        "the table of mh.profiler()");
  if (request.folder != "nvtx") return;
  if (const std::string problem = problem_of_nvtx("--profile=nvtx"); !problem.empty()) throw UsageError(problem);
  request.folder = kDefaultProfileFolder;
  request.nvtx = true;
}

struct Checks {
  bool detects_nan = false, deterministic = false;
};

/// --detect-nan and --deterministic.
std::shared_ptr<Checks> add_check_options(CLI::App& command) {
  const auto checks = std::make_shared<Checks>();
  command.add_flag("--detect-nan", checks->detects_nan,
                   "Stop at the first NaN that a module or a derivative makes; slower");
  command.add_flag("--deterministic", checks->deterministic,
                   "The same bits in every run, also on GPUs; operators that differ from run to run are refused");
  return checks;
}

}  // namespace

void add_run_command(CLI::App& app, Action& action, const std::vector<std::string>& after_dashes) {
  CLI::App* command = app.add_subcommand("run", "Run a Lua script on one or several ranks");
  const auto options = std::make_shared<SessionOptions>();
  command->add_option("script", options->script, "The Lua script")->required()->check(CLI::ExistingFile);
  add_rank_options(*command, *options);
  add_timeout_option(*command, *options);
  command->add_option("--set", options->settings, "A configuration value, key=value; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--config", options->config_files,
                   "Configuration table, FILE.yaml, FILE.lua or FILE.json; may be repeated, later ones have priority")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::ExistingFile);
  command->add_option("--log", options->log_file, "Write what mh.log is given, one JSON object a line");
  const CLI::Option* named =
      command
          ->add_option("--run", options->run_name,
                       "Make a run folder, runs/DATE_NAME_XXXX (default: the script's name); NAME may be a path")
          ->type_name("[NAME]")
          ->expected(0, 1);
  const CLI::Option* resumed =
      command
          ->add_option("--resume", options->resume,
                       "Continue the run in this folder, or the latest one of --run NAME (default: latest)")
          ->type_name("[FOLDER]")
          ->expected(0, 1);
  command->add_flag("--fake-tensors", options->fake_tensors,
                    "With --backend fake: compute nothing, and print the memory and messages that the rank needs");
  command->add_flag("--quiet", options->quiet, "No progress output");
  const auto profile = add_profile_options(*command);
  const auto checks = add_check_options(*command);
  const auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("arguments", *words, "After --: the script's own arguments, arg[1] ...");
  command->footer(
      "Ends with status 0; 1 when the script failed; 2 for wrong usage; 3 when a rank was lost or silent for too long; "
      "or with\n"
      "what os.exit gives. mpirun passes on the status of the rank that ended first; a killed rank's is 128 + its "
      "signal.\n");
  command->callback([options, words, named, resumed, profile, checks, &action, &after_dashes] {
    action = [options, words, named, resumed, profile, checks, &after_dashes] {
      refuse_words(*words, profile->folder == "profile");
      check_profile(*profile, *options);
      options->arguments = after_dashes;
      if (resumed->count() > 0 && options->resume.empty()) options->resume = "latest";
      if ((named->count() > 0 || !options->resume.empty()) && options->run_name.empty())
        options->run_name = std::filesystem::path(options->script).stem().string();
      if (checks->deterministic) set_deterministic(true, /*warn_only=*/false);  // before ranks that are threads start
      return run_session(*options, [profile, checks](lua_State* lua) {
        forbid_undefined_globals(lua);
        begin_run(lua);
        begin_run_profile(lua, *profile);
        if (checks->detects_nan) set_detect_nan(lua, true);
        run_in_folder(lua);
        warn_of_unread_settings(lua, "--set and --config");
      });
    };
  });
}

}  // namespace moonhalo::scripting
