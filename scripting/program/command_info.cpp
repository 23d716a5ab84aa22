// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <hdf5.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
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

/// Settings of LuaLS for a folder of scripts. The annotations are in a folder of their own, because `require
/// "moonhalo"` of another Lua would find a moonhalo.lua beside the script.
constexpr const char* kTypesFolder = ".lua_types";
constexpr const char* kEditorSettings = R"({
  "runtime.version": "Lua 5.4",
  "workspace.library": [".lua_types"],
  "workspace.checkThirdParty": false
}
)";

void write_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write) {
  std::ofstream file(path);
  write(file);
  file.close();
  if (!file) throw UsageError("info: cannot write '" + path.string() + "'");
}

int save_annotations(const std::string& path) {
  namespace fs = std::filesystem;
  const auto state = new_state();
  const auto annotations = [&](std::ostream& out) { write_annotations(state.get(), out); };
  if (!fs::is_directory(path)) {
    write_file(path, annotations);
    return kDone;
  }
  const fs::path types = fs::path(path) / kTypesFolder, settings = fs::path(path) / ".luarc.json";
  std::error_code failed;
  fs::create_directories(types, failed);
  if (failed) throw UsageError("info: cannot make the folder '" + types.string() + "'\n  have  " + failed.message());
  write_file(types / "moonhalo.lua", annotations);
  if (fs::exists(settings)) {
    std::printf("%s exists and stays; LuaLS needs in it  \"workspace.library\": [\"%s\"]\n", settings.c_str(),
                kTypesFolder);
    return kDone;
  }
  write_file(settings, [](std::ostream& out) { out << kEditorSettings; });
  return kDone;
}

}  // namespace

void add_info_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("info", "Versions, backends and devices");
  const auto annotations = std::make_shared<std::string>();
  command->add_option(
      "--annotations", *annotations,
      "Write signatures and options for editors (LuaLS) instead: into this file, or, with settings, this folder");
  command->callback([annotations, &action] {
    action = [annotations] { return annotations->empty() ? print_info() : save_annotations(*annotations); };
  });
}

}  // namespace moonhalo::scripting
