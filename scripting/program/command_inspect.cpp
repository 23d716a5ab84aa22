// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/formats/dataset_info.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/modules.h"
#include "moonhalo/scripting/core/values.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/inspect_models.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + (text.empty() ? std::string("-") : text);
  return all;
}

void print_attributes(const io::Attributes& attributes) {
  for (const auto& [name, value] : attributes) std::printf("  @%s = %s\n", name.c_str(), io::to_string(value).c_str());
}

/// The groups that lead to a dataset, "a" and "a/b" for "a/b/c", as far as `printed` does not have them.
void print_groups(const io::File& file, const std::string& dataset, std::set<std::string>& printed) {
  for (size_t end = dataset.find('/'); end != std::string::npos; end = dataset.find('/', end + 1)) {
    const std::string group = dataset.substr(0, end);
    if (!printed.insert(group).second) continue;
    std::printf("%s/\n", group.c_str());
    print_attributes(file.attrs(group));
  }
}

void print_dataset(const io::File& file, const std::string& name) {
  std::optional<io::Dataset> found;
  try {
    found = file[name];
  } catch (const c10::ValueError& error) {  // damaged, or it leads to another file that must not be read
    std::printf("%s  refused: %s\n", name.c_str(), error.what_without_backtrace());
    return;
  }
  const io::Dataset& data = *found;
  std::printf("%s  %s %s", name.c_str(), data.type_name().c_str(), shape_string(data.shape()).c_str());
  const std::vector<std::string> dims = data.dims();
  if (std::any_of(dims.begin(), dims.end(), [](const std::string& dim) { return !dim.empty(); })) {
    std::printf("  dims (%s)", joined(dims).c_str());
  }
  if (!data.chunks().empty()) std::printf("  chunks %s", shape_string(data.chunks()).c_str());
  if (!data.filters().empty()) std::printf("  filters (%s)", joined(data.filters()).c_str());
  if (!data.info().refusal.empty()) std::printf("  not read: %s", data.info().refusal.c_str());
  std::printf("\n");
  print_attributes(data.attrs());
}

struct Wanted {
  std::string path, variable, picture;
  bool safe = false;
};

/// Lua has the layouts of mh.data, and draws.
void inspect_in_lua(lua_State* lua, const Wanted& wanted) {
  push_embedded(lua, "internal.inspect");
  push(lua, wanted.path);
  push(lua, wanted.variable);
  push(lua, wanted.picture);
  call_traced(lua, 3, 0);
}

int inspect(const Wanted& wanted) {
  if (is_model_file(wanted.path)) {
    TORCH_CHECK_VALUE(wanted.variable.empty(), "inspect: file \"", wanted.path,
                      "\" holds a model, of which nothing is drawn\n  have  --plot ", wanted.variable,
                      "\n  fix   leave --plot out");
    print_model_file(wanted.path);
    return kDone;
  }
  const io::File file = io::open(wanted.path);
  std::printf("%s  %s\n", wanted.path.c_str(), file.format().c_str());
  print_attributes(file.attrs());
  std::set<std::string> groups;
  for (const std::string& name : file.datasets()) {
    print_groups(file, name, groups);
    print_dataset(file, name);
  }
  return run_session({.quiet = true}, [&](lua_State* lua) { inspect_in_lua(lua, wanted); });
}

constexpr unsigned kSafeSeconds = 60;
constexpr rlim_t kSafeBytes = rlim_t{4} << 30;  // beyond what the program itself maps

/// inspect() within limits on time and memory, for a process that has nothing to lose; never returns.
[[noreturn]] void inspect_and_exit(const Wanted& wanted) {
  int status = kScriptFailed;
  std::string complaint;
  try {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kSafeBytes;
    const rlimit memory{bytes, bytes}, core{0, 0};
    TORCH_CHECK(setrlimit(RLIMIT_AS, &memory) == 0 && setrlimit(RLIMIT_CORE, &core) == 0,
                "inspect: cannot set a limit\n  have  ", std::strerror(errno), "\n  fix   inspect without --safe");
    std::signal(SIGALRM, SIG_DFL);
    alarm(kSafeSeconds);
    status = inspect(wanted);
  } catch (const std::bad_alloc&) {
    complaint = "inspect: file \"" + wanted.path +
                "\" asks for more than 4 GiB\n  have  a damaged file, or one made to harm\n" +
                "  fix   copy or download it again";
  } catch (const std::exception& error) {
    complaint = plain_message(error);
  }
  const bool printed = std::fflush(stdout) == 0;
  if (!complaint.empty()) std::fprintf(stderr, "moonhalo: %s\n", complaint.c_str());
  _exit(printed ? status : kScriptFailed);
}

/// inspect() in a process of its own: HDF5 1.10 crashes or loops on some damaged files.
int inspect_safely(const Wanted& wanted) {
  std::fflush(nullptr);
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "inspect: cannot start a process\n  have  ", std::strerror(errno),
              "\n  fix   inspect without --safe");
  if (child == 0) inspect_and_exit(wanted);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    TORCH_CHECK(errno == EINTR, "inspect: cannot wait for its process\n  have  ", std::strerror(errno),
                "\n  fix   inspect without --safe");
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  const char* fix =
      "\n  have  a damaged file, or one made to harm\n  fix   copy or download it again; do not read it in a run";
  TORCH_CHECK(signal != SIGALRM, "inspect: file \"", wanted.path, "\": the HDF5 library did not come to an end in ",
              kSafeSeconds, " s", fix);
  TORCH_CHECK(false, "inspect: file \"", wanted.path, "\": the HDF5 library crashed on this file (signal ", signal,
              ", ", strsignal(signal), ")", fix);
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Groups, datasets, chunks, attributes and layout of a file: HDF5, NetCDF, or a Zarr folder; tensors and values "
      "of a model: .pt, .ckpt, .mdlus, safetensors, the entries of .pt2");
  const auto wanted = std::make_shared<Wanted>();
  command->add_option("file", wanted->path, "The file or folder")->required()->check(CLI::ExistingPath);
  command->add_option(
      "--plot", wanted->variable,
      "Draw a dataset, or a part of one, as 'air[3, :, :]'; else the first of all but the last two dims");
  command->add_option("--output", wanted->picture, "The picture that --plot writes (default: VARIABLE.png)");
  command->add_flag("--safe", wanted->safe,
                    "Read a suspicious file in a process of its own, for at most 60 s and 4 GiB");
  command->callback([wanted, &action] {
    if (wanted->picture.empty()) {
      wanted->picture = wanted->variable.substr(0, wanted->variable.find('[')) + ".png";
      std::replace(wanted->picture.begin(), wanted->picture.end(), '/', '_');
    }
    action = [wanted] { return wanted->safe ? inspect_safely(*wanted) : inspect(*wanted); };
  });
}

}  // namespace moonhalo::scripting
