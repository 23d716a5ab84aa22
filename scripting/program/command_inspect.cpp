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

#include "moonhalo/io/domain_file.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

std::string list_text(const std::vector<int64_t>& values) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < values.size(); ++i) text << (i > 0 ? ", " : "") << values[i];
  text << "]";
  return text.str();
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + (text.empty() ? std::string("-") : text);
  return all;
}

int inspect(const std::string& path) {
  const io::File file = io::open(path);
  std::printf("%s\n", path.c_str());
  for (const auto& [name, value] : file.attrs())
    std::printf("  @%s = %s\n", name.c_str(), io::to_string(value).c_str());
  for (const std::string& name : file.datasets()) {
    std::optional<io::Dataset> found;
    try {
      found = file[name];
    } catch (const c10::ValueError& error) {  // it leads to another file that must not be read
      std::printf("%s  refused: %s\n", name.c_str(), error.what_without_backtrace());
      continue;
    }
    const io::Dataset& data = *found;
    std::printf("%s  %s %s", name.c_str(), data.type_name().c_str(), list_text(data.shape()).c_str());
    const std::vector<std::string> dims = data.dims();
    if (std::any_of(dims.begin(), dims.end(), [](const std::string& dim) { return !dim.empty(); })) {
      std::printf("  dims (%s)", joined(dims).c_str());
    }
    if (!data.chunks().empty()) std::printf("  chunks %s", list_text(data.chunks()).c_str());
    if (!data.filters().empty()) std::printf("  filters (%s)", joined(data.filters()).c_str());
    std::printf("\n");
    for (const auto& [key, value] : data.attrs())
      std::printf("  @%s = %s\n", key.c_str(), io::to_string(value).c_str());
  }
  return kDone;
}

constexpr unsigned kSafeSeconds = 60;
constexpr rlim_t kSafeBytes = rlim_t{4} << 30;  // beyond what the program itself maps

/// inspect() within limits on time and memory, for a process that has nothing to lose; never returns.
[[noreturn]] void inspect_and_exit(const std::string& path) {
  int status = kScriptFailed;
  std::string complaint;
  try {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kSafeBytes;
    const rlimit memory{bytes, bytes}, core{0, 0};
    TORCH_CHECK(setrlimit(RLIMIT_AS, &memory) == 0 && setrlimit(RLIMIT_CORE, &core) == 0, "inspect: cannot set a limit\n  have  ",
                std::strerror(errno), "\n  fix   inspect without --safe");
    std::signal(SIGALRM, SIG_DFL);
    alarm(kSafeSeconds);
    status = inspect(path);
  } catch (const std::bad_alloc&) {
    complaint = "inspect: file \"" + path +
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
int inspect_safely(const std::string& path) {
  std::fflush(nullptr);
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "inspect: cannot start a process\n  have  ", std::strerror(errno), "\n  fix   inspect without --safe");
  if (child == 0) inspect_and_exit(path);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    TORCH_CHECK(errno == EINTR, "inspect: cannot wait for its process\n  have  ", std::strerror(errno), "\n  fix   inspect without --safe");
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  const char* fix =
      "\n  have  a damaged file, or one made to harm\n  fix   copy or download it again; do not read it in a run";
  TORCH_CHECK(signal != SIGALRM, "inspect: file \"", path, "\": the HDF5 library did not come to an end in ", kSafeSeconds, " s", fix);
  TORCH_CHECK(false, "inspect: file \"", path, "\": the HDF5 library crashed on this file (signal ", signal, ", ", strsignal(signal), ")",
              fix);
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("inspect", "Datasets, shapes, chunks and units of an HDF5 or NetCDF-4 file");
  const auto path = std::make_shared<std::string>();
  command->add_option("file", *path, "The file")->required()->check(CLI::ExistingFile);
  const auto safe = std::make_shared<bool>(false);
  command->add_flag("--safe", *safe, "Read a suspicious file in a process of its own, for at most 60 s and 4 GiB");
  command->callback(
      [path, safe, &action] { action = [path, safe] { return *safe ? inspect_safely(*path) : inspect(*path); }; });
}

}  // namespace moonhalo::scripting
