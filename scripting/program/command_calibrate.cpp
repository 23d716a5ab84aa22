// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/forecast/calibrate.h"
#include "moonhalo/engine/forecast/process_memory.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/profile/memory_note.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/output.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

struct CalibrateWanted {
  std::string file = "machine.json";
  double seconds = 45;
  bool verbs = false;
  SessionOptions session;
};

std::string rates_of(const Machine& machine) {
  std::string text = "rates of one core, and how many times as long the same work takes where more cores work\n";
  char line[120];
  for (const auto& [work, rates] : machine.device.flops) {
    std::snprintf(line, sizeof line, "  %-12s %8.1f GFLOP/s", work.c_str(), rates.begin()->second / 1e9);
    text += line;
    for (const auto& [cores, factors] : machine.neighbours) {
      std::snprintf(line, sizeof line, "   %.2f on %d cores", factors.at(work), static_cast<int>(cores));
      text += line;
    }
    text += "\n";
  }
  for (const auto& [bytes, rate] : machine.device.bandwidth) {
    std::snprintf(line, sizeof line, "  %-12s %8.1f GB/s      for tensors of up to %s together\n", "memory", rate / 1e9,
                  bytes_text(bytes).c_str());
    text += line;
  }
  std::snprintf(line, sizeof line, "  %-12s %8.2f us        to start it; times of one differ by %.1f %%\n", "operator",
                machine.device.launch * 1e6, machine.device.jitter * 100);
  text += line;
  std::snprintf(line, sizeof line, "  %-12s %8.2f ms        for which a core keeps one of several threads\n",
                "time slice", machine.host.slice * 1e3);
  return text + line;
}

std::string ranks_of(const std::string& backend, int64_t ranks) {
  if (backend == "threads") return plural(ranks, "rank thread");
  return plural(ranks, "process", "es") + " with " + backend;
}

std::string verbs_text(const std::string& backend, int64_t ranks, const Machine::Verbs& verbs) {
  const auto& longest = verbs.at("all_reduce");
  std::string text = ranks_of(backend, ranks) + ": time of a collective with " + bytes_text(longest.front().first) +
                     ", and with " + bytes_text(longest.back().first) + "\n";
  char line[120];
  for (const auto& [verb, table] : verbs) {
    std::snprintf(line, sizeof line, "  %-14s %8.1f us", verb.c_str(), table.front().second * 1e6);
    text += line;
    if (table.size() > 1) {
      std::snprintf(line, sizeof line, " %8.2f ms", table.back().second * 1e3);
      text += line;
    }
    text += "\n";
  }
  return text;
}

// Says what the file is for, and that forecasts from it are rough where they are. `then`: what follows the remedy.
std::string written(const Machine& machine, const std::string& file, const char* then) {
  std::string text;
  if (!machine.quiet) {
    text = "the machine was not quiet: ";
    text += neighbours_are_plausible(machine) ? "repeated times differ by more than 3 %"
                                              : "work took less time beside neighbours than alone";
    text += ", so forecasts are rough\n  fix   stop other programs and run moonhalo calibrate " + file + " again" +
            then + "; if none ran, give it more time (--seconds)\n";
  }
  return text + "wrote " + file + ": moonhalo plan SCRIPT --machine " + file +
         " forecasts the steps of a script on this machine\n";
}

int calibrate_this_host(const CalibrateWanted& wanted) {
  const Launch launch = detect_launch();
  if (launch.size > 1)
    throw UsageError("calibrate: this process is one of " + std::to_string(launch.size) + "\n  have  " + launch.why +
                     "\n  fix   run it once without a launcher, then with --verbs under the launcher");
  check_machine_is_writable(wanted.file);
  std::fprintf(stderr, "calibrate: measures this machine, at most about %g s; stop other programs meanwhile\n",
               wanted.seconds);
  const Machine machine = calibrate_host(
      wanted.seconds, [](const std::string& next) { std::fprintf(stderr, "calibrate: %s\n", next.c_str()); });
  write_machine(machine, wanted.file);
  write_output("'" + machine.name + "': " + plural(machine.host.cores, "core") + " of '" + machine.host.processor +
               "'\n" + rates_of(machine));
  for (const auto& [ranks, verbs] : machine.verbs.at("threads")) write_output(verbs_text("threads", ranks, verbs));
  write_output(written(machine, wanted.file, "") + "mpirun -n N moonhalo calibrate " + wanted.file +
               " --verbs adds the collectives of N processes\n");
  return kDone;
}

// Resident bytes that this process has more than `before`, on the rank where these are most.
double grown_since(Communicator& world, int64_t before) {
  release_free_memory();
  at::Tensor grown = at::full({1}, static_cast<double>(std::max<int64_t>(0, resident_memory() - before)), at::kDouble);
  world.all_reduce(grown, ReduceOp::kMax);
  return grown.item<double>();
}

int calibrate_ranks(const CalibrateWanted& wanted) {
  const int64_t before = measure_process_memory().idle;  // MPI begins with the session
  return run_session(wanted.session, [&](lua_State* lua) {
    Communicator& world = *context(lua).world;
    // It must have been measured on this machine, which gives the rest of the file.
    Machine machine = read_machine(wanted.file);
    if (world.rank() == 0)
      std::fprintf(stderr, "calibrate: collectives of %s, at most about %g s\n",
                   ranks_of(world.backend(), world.size()).c_str(), wanted.seconds);
    calibrate_verbs(world, wanted.seconds, machine);
    if (world.backend() == std::string("mpi")) machine.host.mpi_rss = grown_since(world, before);
    if (world.rank() != 0) return;
    write_machine(machine, wanted.file);
    write_output(verbs_text(world.backend(), world.size(), machine.verbs.at(world.backend()).at(world.size())));
    write_output(written(machine, wanted.file, ", and then this command"));
  });
}

}  // namespace

void add_calibrate_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure this machine into a file, from which plans and searches forecast the time of a step");
  const auto wanted = std::make_shared<CalibrateWanted>();
  command->add_option("file", wanted->file, "The file to write (default: machine.json)");
  command
      ->add_option("--seconds", wanted->seconds,
                   "The most seconds for repetitions; it takes less where times agree soon (default: 45)")
      ->check(CLI::Range(0.01, 3600.0));
  command->add_flag("--verbs", wanted->verbs,
                    "Add the collectives of these ranks to a file that was measured here: of processes under mpirun, "
                    "srun or torchrun, or of --ranks N threads");
  add_rank_options(*command, wanted->session);
  add_timeout_option(*command, wanted->session);
  for (const char* option : {"--ranks", "--backend", "--device", "--fake-rank", "--timeout"})
    command->get_option(option)->needs("--verbs");
  command->callback([wanted, &action] {
    action = [wanted] { return wanted->verbs ? calibrate_ranks(*wanted) : calibrate_this_host(*wanted); };
  });
}

}  // namespace moonhalo::scripting
