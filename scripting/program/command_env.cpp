// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/launch/check_connectivity.h"
#include "moonhalo/engine/launch/environment_report.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/scripting/core/warnings.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/output.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

int print_surroundings(const std::string& device) {
  const auto getenv = [](const char* variable) -> const char* { return std::getenv(variable); };
  try {
    write_output(describe(detect_launch(), device, getenv));
  } catch (const c10::ValueError& error) {
    throw UsageError(plain_message(error));
  }
  return kDone;
}

void print_times(const Communicator& group, const std::string& device, const std::vector<MessageTimes>& all) {
  char line[160];
  std::snprintf(line, sizeof line, "%d ranks, backend %s, tensors on %s\n%12s %14s %10s %16s %10s\n", group.size(),
                group.backend(), device.c_str(), "bytes", "ring us", "MB/s", "all_reduce us", "MB/s");
  std::string text = line;
  for (const MessageTimes& times : all) {
    const double bytes = static_cast<double>(times.bytes);
    std::snprintf(line, sizeof line, "%12ld %14.1f %10.1f %16.1f %10.1f\n", static_cast<long>(times.bytes),
                  times.ring * 1e6, bytes / times.ring / 1e6, times.all_reduce * 1e6, bytes / times.all_reduce / 1e6);
    text += line;
  }
  write_output(text);
}

// On tensors of the host, and of the device if another one is named.
void try_ranks(lua_State* lua) {
  Communicator& world = *context(lua).world;
  const c10::Device device = context(lua).device;
  const auto host = check_connectivity(world, at::kCPU);
  if (world.rank() == 0) print_times(world, "cpu", host);
  if (device.is_cpu()) return;
  const MeshPtr mesh =
      init_device_mesh(world, shared_device_name(world, device, device.str()), {world.size()}, {"ranks"});
  const auto there = check_connectivity(mesh->group(), device);
  if (world.rank() == 0) print_times(mesh->group(), device.str(), there);
}

}  // namespace

void add_env_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("env", "Launcher, transport and device of this process, and why");
  const auto options = std::make_shared<SessionOptions>();
  const auto tries = std::make_shared<bool>(false);
  command->add_flag("--try", *tries,
                    "Send messages round all ranks and add numbers up: times, and whether they arrive");
  add_rank_options(*command, *options);
  add_timeout_option(*command, *options);
  command->callback([options, tries, &action] {
    action = [options, tries] {
      return *tries ? run_session(*options, try_ranks) : print_surroundings(options->device);
    };
  });
}

}  // namespace moonhalo::scripting
