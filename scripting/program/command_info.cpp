// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <hdf5.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <thread>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/device/device_link.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/scripting/operators/annotations.h"
#include "moonhalo/scripting/operators/operators.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"
#include "moonhalo/version.h"

namespace moonhalo::scripting {

namespace {

int print_info() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  std::printf("moonhalo   %s\n", kVersion);
  std::printf("LibTorch   %s\n", TORCH_VERSION);
  std::printf("Lua        %s.%s\n", LUA_VERSION_MAJOR "." LUA_VERSION_MINOR, LUA_VERSION_RELEASE);
  std::printf("HDF5       %u.%u.%u\n", major, minor, release);
  std::printf("backends   threads tcp%s fake\n", has_mpi() ? " mpi" : "");
  std::printf("devices by %s\n", describe_device_links().c_str());
  std::printf("devices    cpu (%u cores, %d LibTorch threads)", std::thread::hardware_concurrency(),
              at::get_num_threads());
  if (at::globalContext().hasCUDA()) {
    const auto& cuda = at::globalContext().getAcceleratorHooksInterface(c10::kCUDA);
    std::printf(", cuda (%d)", static_cast<int>(cuda.deviceCount()));
  }
  std::printf("\noperators  %zu names from LibTorch, %zu rules for shards\n", operator_names().size(),
              all_rules().size());
  return 0;
}

int save_annotations(const std::string& path) {
  std::ofstream file(path);
  const auto state = new_state();
  write_annotations(state.get(), file);
  file.close();
  if (!file) throw UsageError("info: cannot write '" + path + "'");
  return kDone;
}

}  // namespace

void add_info_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("info", "Versions, backends and devices");
  const auto annotations = std::make_shared<std::string>();
  command->add_option("--annotations", *annotations, "Write a definition file for editors (LuaLS) instead");
  command->callback([annotations, &action] {
    action = [annotations] { return annotations->empty() ? print_info() : save_annotations(*annotations); };
  });
}

}  // namespace moonhalo::scripting
