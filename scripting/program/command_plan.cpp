// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/forecast/operator_times.h"
#include "moonhalo/engine/forecast/process_memory.h"
#include "moonhalo/engine/forecast/search/search_progress.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/base/png.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/dry_run.h"
#include "moonhalo/scripting/program/lua_command.h"
#include "moonhalo/scripting/program/one_of.h"
#include "moonhalo/scripting/program/output.h"
#include "moonhalo/scripting/program/plan_limits.h"
#include "moonhalo/scripting/program/plan_operators.h"
#include "moonhalo/scripting/program/plan_report.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

struct PlanWanted {
  SessionOptions options;
  std::vector<int> ranks = {1};
  int64_t steps = 3, drawn = 4;
  std::string json, png, machine, backend;
  bool ranks_given = false, checks = false, measures = true, measures_again = false;
  int64_t check_steps = 10;
  std::optional<double> within;
};

constexpr int kMostChecked = 64;
constexpr int64_t kTimedSteps = 7;

// Ranks that run are checked as they are.
std::string backend_of_plan(const PlanWanted& wanted, const std::optional<Machine>& machine, int ranks) {
  if (wanted.checks) return fitting_backend(detect_launch());
  if (!wanted.backend.empty()) return wanted.backend;
  return machine ? usual_backend(*machine, ranks) : "mpi";
}

bool measures_here(const PlanWanted& wanted, const Machine& machine) {
  return wanted.measures && (is_this_host(machine) || is_bound_to_part(machine, detect_launch().size));
}

// The file of operators beside that of the machine, or none where nothing is measured.
std::optional<OperatorTimes> open_operator_times(const PlanWanted& wanted, const std::optional<Machine>& machine) {
  if (wanted.measures_again && machine && !is_this_host(*machine))
    throw UsageError("plan --measure-again: no operator can be measured here\n  have  '" + machine->name + "', " +
                     (is_bound_to_part(*machine, detect_launch().size)
                          ? "of whose cores the launcher gave this process a part\n  fix   plan without the launcher"
                          : "which is another machine or was not measured\n  fix   leave --measure-again out, or give "
                            "the file that moonhalo calibrate has written here"));
  if (!machine || !measures_here(wanted, *machine)) return std::nullopt;
  const std::string path = OperatorTimes::path_beside(wanted.machine);
  OperatorTimes times(path, machine->host.cores);
  if (!times.other_host().empty()) {
    std::fprintf(stderr,
                 "moonhalo: plan: the times in '%s' are left out: they are of another host, LibTorch or method, '%s'\n",
                 path.c_str(), times.other_host().c_str());
  }
  if (wanted.measures_again) times.measure_again();
  return times;
}

// A real run says nothing of ranks that communicate in another way.
void check_backend_runs(const PlanWanted& wanted) {
  const std::string runs = fitting_backend(detect_launch());
  if (wanted.backend.empty() || wanted.backend == runs) return;
  throw UsageError("plan --check: the real run communicates by " + runs + "\n  have  --backend " + wanted.backend +
                   "\n  fix   leave --backend out; `mpirun -n 2 moonhalo plan SCRIPT --check` checks those of MPI");
}

// The ranks of a launcher check themselves; else rank threads do.
void set_checked_ranks(PlanWanted& wanted) {
  const Launch launch = detect_launch();
  if (launch.size > 1) {
    if (wanted.ranks_given && wanted.ranks != std::vector<int>{launch.size})
      throw UsageError("plan --check: this process is one of " + std::to_string(launch.size) + "\n  have  " +
                       launch.why + ", --ranks " + std::to_string(wanted.ranks.front()) +
                       "\n  fix   leave --ranks out under a launcher; without one ranks are threads");
    wanted.ranks = {launch.size};
  }
  check_backend_runs(wanted);
  for (const int ranks : wanted.ranks) {
    if (ranks > kMostChecked)
      throw UsageError("plan --check: " + plural(ranks, "rank") + " do not run on this machine\n  have  --ranks " +
                       std::to_string(ranks) + "\n  fix   check at most " + std::to_string(kMostChecked) +
                       " ranks, and plan the others without --check");
  }
}

// A real run here says nothing of a step on another machine.
void check_machine_is_here(const Machine& machine, const std::string& path) {
  if (is_this_host(machine) || is_bound_to_part(machine, detect_launch().size)) return;
  const std::string measured_on = machine.measured
                                      ? plural(machine.host.cores, "core") + " of '" + machine.host.processor + "'"
                                      : "a machine that was not measured";
  throw UsageError("plan --check: the real run is on this machine, '" + path + "' is another one\n  have  '" +
                   machine.name + "', " + measured_on + "; here " + plural(usable_core_count(), "core") + " of '" +
                   processor_model() +
                   "'\n  fix   moonhalo calibrate FILE measures this machine: give that FILE; or plan for '" +
                   machine.name + "' without --check");
}

int status_of_checks(const std::vector<RanksPlan>& plans) {
  for (const RanksPlan& plan : plans) {
    if (!plan.check) continue;
    const bool right = sends_as_planned(plan, *plan.check) && holds_as_planned(plan, *plan.check) &&
                       lasts_as_planned(plan, *plan.check);
    if (!right) return kScriptFailed;
  }
  return kDone;
}

// `times`: of operators, or null where none is measured.
RanksPlan plan_of(const PlanWanted& wanted, int ranks, const std::optional<Machine>& machine, OperatorTimes* times) {
  SessionOptions options = wanted.options;
  options.ranks = ranks;
  options.root_facts = std::make_shared<RootFacts>();
  const std::string backend = backend_of_plan(wanted, machine, ranks);
  if (machine || wanted.checks) options.simulated = backend;
  SearchProgress progress([&](const std::string& text) {
    std::fprintf(stderr, "moonhalo: plan: %s: %s\n", plural(ranks, "rank").c_str(), text.c_str());
  });
  int64_t done = 0;
  const DryRun run_ranks = [&](const std::vector<int64_t>& which) {
    return dry_run(options, which, wanted.steps, times != nullptr ? kTimedSteps : 0, [&](int64_t count) {
      done += count;
      progress.at([&] { return plural(done, "dry run") + " done"; });
    });
  };
  RanksPlan plan = summarize_ranks(ranks, find_kinds(ranks, run_ranks, wanted.drawn));
  plan.backend = backend;
  if (!machine) return plan;
  plan.hosts.ranks = Costs(*machine, backend, ranks).ranks_of_host();
  if (machine->device.kind == "cpu") plan.hosts.cores = machine->host.cores;
  plan.backend_memory = std::llround(machine->memory_of_backend(backend));
  Machine with_operators = *machine;  // operators take other times on other numbers of ranks
  int64_t unsteady = 0;
  if (times != nullptr) {
    unsteady = measure_operators(plan.found, ranks, *times, with_operators, progress);
    take_host_time(plan.found, with_operators);
  }
  plan.time = forecast_step(with_operators, plan.found.tapes, backend);
  advise_by_cuts(plan);
  if (unsteady > 0)
    plan.time->notes.push_back(plural(unsteady, "operator") + " measured while the machine was not quiet: " +
                               "--measure-again measures all of them once more");
  if (times == nullptr) note_unmeasured(*machine, plan.found, wanted.measures, *plan.time);
  return plan;
}

// Runs the script for real. `plan`: of rank 0, null in other processes.
int check_plan(const PlanWanted& wanted, int ranks, const ProcessMemory& process, RanksPlan* plan) {
  SessionOptions options = wanted.options;
  options.ranks = ranks;
  RanksCheck check{.first_timed = first_timed_step(wanted.steps),
                   .threads = detect_launch().size == 1,
                   .within = wanted.within,
                   .process = process,
                   .first = ranks == wanted.ranks.front()};
  const int status = real_run(options, wanted.steps, wanted.check_steps, check.ranks);
  if (status == kDone && plan != nullptr) plan->check = std::move(check);
  return status;
}

// Fails before the work is done if a file cannot be written.
void check_writable(const char* option, const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path file(path), folder = file.has_parent_path() ? file.parent_path() : ".";
  const bool is_new = !std::filesystem::exists(file), is_folder = std::filesystem::is_directory(file);
  bool good = !is_folder && std::ofstream(path, std::ios::app).good();
  // A file that is there is replaced, and not written to.
  if (good && std::filesystem::is_regular_file(file)) good = access(folder.c_str(), W_OK) == 0;
  if (!good)
    throw UsageError(std::string(option) + ": cannot write '" + path + "'\n  have  " +
                     (is_folder ? "a folder of that name" : std::strerror(errno)) +
                     "\n  fix   name a file in a folder that exists and is yours");
  if (is_new) std::filesystem::remove(std::filesystem::canonical(file));  // not a link to it
}

void check_picture(const char* option, const std::string& path) {
  try {
    io::check_png_name(option, path);
  } catch (const c10::ValueError& error) {
    throw UsageError(plain_message(error));
  }
}

// The file that takes the place of what is at `path`, or none where that is written to as it is: a pipe, a device, a
// link to one of them. A link to a file stays, and its target is replaced.
std::optional<std::string> replaced_file(const std::string& path) {
  const std::filesystem::file_status status = std::filesystem::symlink_status(path);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return path;
  if (!std::filesystem::is_symlink(status) || !std::filesystem::is_regular_file(path)) return std::nullopt;
  return std::filesystem::canonical(path).string();
}

// The file into which the shell has put standard output (> FILE): another file in its place would lose the report.
bool is_standard_output(const std::string& path) {
  struct stat file, output;
  return stat(path.c_str(), &file) == 0 && fstat(STDOUT_FILENO, &output) == 0 && file.st_dev == output.st_dev &&
         file.st_ino == output.st_ino;
}

// Puts what is known by now into the file of --json, which is whole at any time. A pipe gets the last report
// alone.
void write_json(const std::string& path, const std::string& json, bool is_last) {
  if (path.empty()) return;
  if (is_standard_output(path)) {
    if (is_last) write_output(json);
    return;
  }
  const std::optional<std::string> replaced = replaced_file(path);
  if (!replaced) {
    if (is_last) std::ofstream(path) << json;
    return;
  }
  io::NewFile file("--json", *replaced);
  file.write(json.data(), json.size());
  file.finish();
}

int draw_plans(const std::string& path, const std::string& json) {
  return run_lua_command("internal.plan_picture", [&](lua_State* lua) {
    lua_newtable(lua);
    set_field(lua, "path", path);
    set_field(lua, "json", json);
  });
}

// Prints each number of ranks as soon as it is known, and adds it to `plans` and to the file of --json: what comes
// after it may fail or be stopped. Returns kDone, or the status of what failed. `joined`: whether a real run was begun,
// which connects the processes of a launcher.
int plan_each(const PlanWanted& wanted, const ProcessMemory& process, const std::optional<Machine>& machine,
              const PlanSubject& subject, std::vector<RanksPlan>& plans, bool& joined) {
  std::optional<OperatorTimes> times = open_operator_times(wanted, machine);
  for (const int ranks : wanted.ranks) {
    try {
      plans.push_back(plan_of(wanted, ranks, machine, times ? &*times : nullptr));
    } catch (const DryRunFailed& failed) {
      std::fprintf(stderr, "moonhalo: plan: a dry run on %s failed\n", plural(ranks, "rank").c_str());
      return failed.status;
    }
    if (wanted.checks) {
      joined = true;
      if (const int status = check_plan(wanted, ranks, process, &plans.back()); status != kDone) {
        std::fprintf(stderr, "moonhalo: plan: the real run on %s failed\n", plural(ranks, "rank").c_str());
        return status;
      }
    }
    write_output(ranks_text(subject, plans.back()));
    const std::vector<int> missing(wanted.ranks.begin() + std::ssize(plans), wanted.ranks.end());
    if (!wanted.json.empty()) write_json(wanted.json, plan_json(subject, plans, missing), missing.empty());
  }
  return kDone;
}

int plan_on_first_rank(const PlanWanted& wanted, const ProcessMemory& process, bool& joined) {
  if (!is_standard_output(wanted.json)) check_writable("--json", replaced_file(wanted.json).value_or(wanted.json));
  check_picture("--png", wanted.png);
  check_writable("--png", wanted.png);
  std::optional<Machine> machine;
  if (!wanted.machine.empty()) machine = read_machine(wanted.machine);
  if (wanted.checks && machine) check_machine_is_here(*machine, wanted.machine);
  const PlanSubject subject{wanted.options.script, machine ? machine->name : "", process.base};
  std::vector<RanksPlan> plans;
  if (const int status = plan_each(wanted, process, machine, subject, plans, joined); status != kDone) return status;
  write_output(comparison_text(subject, plans) +
               (machine ? "Times are forecasts for '" + machine->name + "', not measured ones.\n"
                        : "No times are given: --machine FILE forecasts them (moonhalo calibrate FILE measures this "
                          "machine; h100, a100 and epyc need no file).\n"));
  if (!wanted.png.empty()) {
    if (const int status = draw_plans(wanted.png, plan_json(subject, plans, {})); status != kDone) return status;
  }
  return status_of_checks(plans);
}

int plan(PlanWanted wanted) {
  const ProcessMemory process = measure_process_memory();
  if (wanted.checks) set_checked_ranks(wanted);
  const Launch launch = detect_launch();
  const bool others_wait = wanted.checks && launch.size > 1;
  if (others_wait && launch.rank > 0) return check_plan(wanted, wanted.ranks.front(), process, nullptr);
  bool joined = false;
  const int status = status_of([&] { return plan_on_first_rank(wanted, process, joined); });
  if (others_wait && !joined) give_up_real_run(wanted.options, status);
  return status;
}

// "20%" or "20"
double parse_share(const std::string& text) {
  char* end = nullptr;
  const double percent = std::strtod(text.c_str(), &end);
  const bool right = end != text.c_str() && (*end == '\0' || std::string(end) == "%") && percent > 0 && percent <= 1000;
  if (!right) throw CLI::ValidationError("--within", "'" + text + "' is not a share such as 20%");
  return percent / 100;
}

void add_real_run_options(CLI::App& command, PlanWanted& wanted) {
  command.add_flag("--check", wanted.checks,
                   "Run the script here for real, too, on rank threads or under mpirun, and compare");
  command.add_option("--check-steps", wanted.check_steps, "The steps of a real run that are timed (default: 10)")
      ->check(CLI::PositiveNumber)
      ->needs("--check");
  command
      .add_option_function<std::string>(
          "--within", [&wanted](const std::string& text) { wanted.within = parse_share(text); },
          "With --check and --machine: status 1 if the time of a step is off by more than this share, such as 20%")
      ->needs("--check")
      ->needs("--machine");
  CLI::Option* const no_measure =
      command.add_flag("!--no-measure", wanted.measures,
                       "Take times of operators from rates alone: do not measure those of the script on this machine");
  command
      .add_flag("--measure-again", wanted.measures_again,
                "Measure all operators of the script on this machine, also those that FILE.operators.json has")
      ->needs("--machine")
      ->excludes(no_measure);
}

}  // namespace

void add_plan_command(CLI::App& app, Action& action, const std::vector<std::string>& after_dashes) {
  CLI::App* command =
      app.add_subcommand("plan", "What a training script needs on many ranks: memory, messages and time, without them");
  const auto wanted = std::make_shared<PlanWanted>();
  SessionOptions& options = wanted->options;
  command->add_option("script", options.script, "The Lua script")->required()->check(CLI::ExistingFile);
  const CLI::Option* const ranks =
      command->add_option("--ranks", wanted->ranks, "Numbers of ranks, such as 8,64,512 (default: 1)")
          ->delimiter(',')
          ->check(CLI::Range(1, 65536));
  command->add_option("--steps", wanted->steps, "The training step that is looked at, from 1 (default: 3)")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--drawn", wanted->drawn,
                   "How many ranks are drawn, run, and compared with the rank that stands for them (default: 4)")
      ->check(CLI::Range(0, 65536));
  command->add_option("--json", wanted->json, "Write the report for programs into this file, too");
  command->add_option("--png", wanted->png,
                      "Draw the time of a step and the memory of a rank over the numbers of ranks into this file");
  command->add_option("--machine", wanted->machine,
                      "Forecast the time of a step on this machine: a file of moonhalo calibrate, or h100, a100, epyc");
  command
      ->add_option("--backend", wanted->backend,
                   "What sends the messages in forecasts: threads, mpi, tcp, nccl or staged (default: nccl for GPUs, "
                   "threads where all ranks are on one host, else mpi)")
      ->check(one_of({"threads", "mpi", "tcp", "nccl", "staged"}))
      ->needs("--machine");
  add_real_run_options(*command, *wanted);
  const auto repeated = [&](const char* name, std::vector<std::string>& values, const char* what) {
    return command->add_option(name, values, what)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  repeated("--set", options.settings, "A configuration value, key=value; may be repeated");
  repeated("--config", options.config_files, "Configuration table, FILE.yaml, FILE.lua or FILE.json; may be repeated")
      ->check(CLI::ExistingFile);
  const auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("arguments", *words, "After --: the script's own arguments, arg[1] ...");
  command->footer(
      "The script is run as some ranks of each number, without computing, sending or writing files; with --check then "
      "for\nreal. Ends with status 0; 1 when the script failed, or sends or holds something else than planned; 2 for "
      "wrong usage.\n");
  command->callback([wanted, words, ranks, &action, &after_dashes] {
    action = [wanted, words, ranks, &after_dashes] {
      if (!words->empty())
        throw UsageError("plan: '" + words->front() + "' is neither an option nor behind --\n  have  " +
                         words->front() + "\n  fix   put -- before it: arg[1] of the script");
      wanted->options.arguments = after_dashes;
      wanted->ranks_given = ranks->count() > 0;
      return plan(*wanted);
    };
  });
}

}  // namespace moonhalo::scripting
