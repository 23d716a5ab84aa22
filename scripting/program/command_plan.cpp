// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/dry_run.h"
#include "moonhalo/scripting/program/output.h"
#include "moonhalo/scripting/program/plan_report.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

struct PlanWanted {
  SessionOptions options;
  std::vector<int> ranks = {1};
  int64_t steps = 3;
  std::string json, machine, backend;
};

int plan(const PlanWanted& wanted) {
  const int64_t base = resident_memory();
  std::optional<Machine> machine;
  if (!wanted.machine.empty()) machine = read_machine(wanted.machine);
  std::vector<RanksPlan> plans;
  for (const int ranks : wanted.ranks) {
    SessionOptions options = wanted.options;
    options.ranks = ranks;
    try {
      plans.push_back(summarize_ranks(ranks, find_kinds(ranks, [&](const std::vector<int64_t>& which) {
                                        return dry_run(options, which, wanted.steps);
                                      })));
      if (machine) {
        const std::string backend = wanted.backend.empty() ? usual_backend(*machine, ranks) : wanted.backend;
        plans.back().time = forecast_step(*machine, plans.back().found.tapes, backend);
      }
    } catch (const DryRunFailed& failed) {
      std::fprintf(stderr, "moonhalo: plan: a dry run on %d ranks failed\n", ranks);
      return failed.status;
    }
  }
  write_output(plan_text(wanted.options.script, plans, base) +
               (machine ? "Times are forecasts for '" + machine->name + "', not measured ones.\n"
                        : "No times are given: --machine FILE gives them (moonhalo calibrate FILE measures this host; "
                          "h100, a100 and epyc are there).\n"));
  if (wanted.json.empty()) return kDone;
  std::ofstream file(wanted.json);
  file << plan_json(wanted.options.script, plans, base);
  file.close();
  if (!file) throw UsageError("--json: cannot write '" + wanted.json + "': " + std::strerror(errno));
  return kDone;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& action, const std::vector<std::string>& after_dashes) {
  CLI::App* command =
      app.add_subcommand("plan", "What a training script needs on many ranks: memory, messages and time, without them");
  const auto wanted = std::make_shared<PlanWanted>();
  SessionOptions& options = wanted->options;
  command->add_option("script", options.script, "The Lua script")->required()->check(CLI::ExistingFile);
  command->add_option("--ranks", wanted->ranks, "Numbers of ranks, such as 8,64,512 (default: 1)")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  command->add_option("--steps", wanted->steps, "The training step that is looked at, from 1 (default: 3)")
      ->check(CLI::PositiveNumber);
  command->add_option("--json", wanted->json, "Write the report for programs into this file, too");
  command->add_option("--machine", wanted->machine,
                      "Forecast the time of a step on this machine: a file of moonhalo calibrate, or h100, a100, epyc");
  command
      ->add_option("--backend", wanted->backend,
                   "What sends the messages in forecasts: threads, mpi, tcp, nccl or staged (default: nccl for GPUs, "
                   "threads within a host, else mpi)")
      ->check(CLI::IsMember({"threads", "mpi", "tcp", "nccl", "staged"}))
      ->needs("--machine");
  const auto repeated = [&](const char* name, std::vector<std::string>& values, const char* what) {
    return command->add_option(name, values, what)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  repeated("--set", options.settings, "A configuration value, key=value; may be repeated");
  repeated("--config", options.config_files, "Configuration table, FILE.yaml, FILE.lua or FILE.json; may be repeated")
      ->check(CLI::ExistingFile);
  const auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("arguments", *words, "After --: the script's own arguments, arg[1] ...");
  command->footer(
      "The script is run as some ranks of each number, without computing, sending or writing files. Ends with status "
      "0; "
      "1 when\nthe script failed; 2 for wrong usage.\n");
  command->callback([wanted, words, &action, &after_dashes] {
    action = [wanted, words, &after_dashes] {
      if (!words->empty())
        throw UsageError("plan: '" + words->front() + "' is neither an option nor behind --\n  have  " +
                         words->front() + "\n  fix   put -- before it: arg[1] of the script");
      wanted->options.arguments = after_dashes;
      return plan(*wanted);
    };
  });
}

}  // namespace moonhalo::scripting
