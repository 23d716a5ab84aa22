// SPDX-License-Identifier: Apache-2.0
// The parts of run folders that Lua lacks: folders that only one program makes, checksums, versions, processes.
#include "moonhalo/scripting/bind/run.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/codecs/crc32.h"
#include "moonhalo/io/codecs/crc32c.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/version.h"

namespace moonhalo::scripting {

namespace {

const char kOutputKey = 0;

/// make_folder(path) -> true if this call made it, false if something has that name
int make_new_folder(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const bool made = mkdir(path.c_str(), 0777) == 0;
  const int error = errno;
  TORCH_CHECK_VALUE(made || error == EEXIST, "run: cannot make '", path, "': ", std::strerror(error),
                    io::disk_remedy(error));
  push(lua, made);
  return 1;
}

/// list(folder) -> the names in it, sorted; nil if it cannot be read
int list_names(lua_State* lua) {
  std::error_code error;
  std::filesystem::directory_iterator next(check_string(lua, 1), error);
  if (error) return lua_pushnil(lua), 1;
  std::vector<std::string> names;
  for (const std::filesystem::directory_iterator end; next != end && !error; next.increment(error))
    names.push_back(next->path().filename().string());
  if (error) return lua_pushnil(lua), 1;
  std::sort(names.begin(), names.end());
  push(lua, names);
  return 1;
}

/// crc32c(text) -> integer
/// crc32(text) -> integer: the checksum of PNG
template <uint32_t (&checksum)(const char* data, size_t bytes)>
int checksum_of(lua_State* lua) {
  const std::string text = check_string(lua, 1);
  push(lua, static_cast<int64_t>(checksum(text.data(), text.size())));
  return 1;
}

/// versions() -> names and versions of what the program is made of
int versions(lua_State* lua) {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  lua_newtable(lua);
  set_field(lua, "moonhalo", kVersion);
  set_field(lua, "libtorch", TORCH_VERSION);
  set_field(lua, "lua", LUA_VERSION_MAJOR "." LUA_VERSION_MINOR "." LUA_VERSION_RELEASE);
  set_field(lua, "hdf5", std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release));
  return 1;
}

/// host() -> its name
int host_name(lua_State* lua) {
  char name[256] = "";
  push(lua, gethostname(name, sizeof name - 1) == 0 ? name : "");
  return 1;
}

/// pid() -> the number of this process
int process_number(lua_State* lua) {
  push(lua, static_cast<int64_t>(getpid()));
  return 1;
}

/// working_directory() -> its path
int working_directory(lua_State* lua) {
  std::error_code error;
  const std::filesystem::path here = std::filesystem::current_path(error);
  push(lua, error ? std::string() : here.string());
  return 1;
}

/// copy_output(fn): fn(text) is called with every line that print writes
int set_output_copy(lua_State* lua) {
  lua_settop(lua, 1);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kOutputKey);
  return 0;
}

[[noreturn]] void become(const std::vector<char*>& words, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // it has ended before
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execvp(words[0], words.data());
  _exit(127);
}

/// claim(output) -> a descriptor of that file, which no other process has while this one or a process that spawn()
/// gave it to lives; nil if another has it
int claim_output(lua_State* lua) {
  const std::string path = check_string(lua, 1);
  const int output = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  const int error = errno;
  TORCH_CHECK_VALUE(output >= 0, "sweep: cannot write '", path, "': ", std::strerror(error), io::disk_remedy(error));
  if (flock(output, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(output);
    return lua_pushnil(lua), 1;
  }
  push(lua, static_cast<int64_t>(output));
  return 1;
}

/// release(descriptor): gives up a claim
int release_output(lua_State* lua) {
  close(static_cast<int>(check_int(lua, 1)));
  return 0;
}

// SIGTERM and SIGUSR1 of a sweep are for the runs that it has started. A handler may read no more than this.
constexpr size_t kMostProcesses = 4096;
std::array<std::atomic<pid_t>, kMostProcesses> processes;
std::atomic<int> stop_signal_number = 0;
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void pass_on_signal(int number) {
  stop_signal_number = number;
  for (const std::atomic<pid_t>& process : processes) {
    const pid_t id = process;
    if (id > 0) kill(id, number);
  }
}

void pass_on_signals() {
  static const bool once = [] {
    struct sigaction action {};
    action.sa_handler = pass_on_signal;
    action.sa_flags = SA_RESTART;
    for (const int number : {SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
    return true;
  }();
  (void)once;
}

void replace_process(pid_t old_id, pid_t id) {
  for (std::atomic<pid_t>& process : processes) {
    pid_t expected = old_id;
    if (process.compare_exchange_strong(expected, id)) return;
  }
}

/// stop_signal() -> the name of the signal that this process has passed on to those of spawn(); nil without one
int stop_signal(lua_State* lua) {
  const int number = stop_signal_number;
  if (number == 0) return lua_pushnil(lua), 1;
  push(lua, number == SIGTERM ? "SIGTERM" : "SIGUSR1");
  return 1;
}

/// spawn(words, output) -> number of the process. It writes its output into what claim() gave, and ends with this one.
int spawn(lua_State* lua) {
  std::vector<std::string> texts = check_string_list(lua, 1);
  const int output = static_cast<int>(check_int(lua, 2));
  TORCH_CHECK_VALUE(!texts.empty(), "spawn: there is no program");
  if (ftruncate(output, 0) != 0) lseek(output, 0, SEEK_END);  // what cannot be cut is continued
  pass_on_signals();
  std::vector<char*> words;
  for (std::string& text : texts) words.push_back(text.data());
  words.push_back(nullptr);
  const pid_t parent = getpid(), child = fork();
  const int error = errno;
  if (child == 0) become(words, output, parent);
  close(output);
  TORCH_CHECK(child > 0, "sweep: cannot start a process\n  have  ", std::strerror(error),
              "\n  fix   take fewer --jobs, or a machine with more memory");
  replace_process(0, child);
  if (stop_signal_number != 0) kill(child, stop_signal_number);  // it may have come before the child was noted
  push(lua, static_cast<int64_t>(child));
  return 1;
}

/// wait() -> number of a process of spawn() that has ended, its exit status (128 + the signal of one that was killed)
int wait_for_process(lua_State* lua) {
  siginfo_t ended{};
  int result = 0, status = 0;
  do result = waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT);  // its number stays its own until signals leave it out
  while (result < 0 && errno == EINTR);
  TORCH_CHECK(result == 0, "sweep: cannot wait for a process: ", std::strerror(errno));
  const pid_t child = ended.si_pid;
  replace_process(child, 0);
  do result = waitpid(child, &status, 0);
  while (result < 0 && errno == EINTR);
  push(lua, static_cast<int64_t>(child));
  push(lua, static_cast<int64_t>(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
  return 2;
}

const luaL_Reg kRunFunctions[] = {
    {"make_folder", guard<make_new_folder>},
    {"list", guard<list_names>},
    {"crc32c", guard<checksum_of<io::crc32c>>},
    {"crc32", guard<checksum_of<io::crc32>>},
    {"versions", guard<versions>},
    {"host", guard<host_name>},
    {"pid", guard<process_number>},
    {"copy_output", guard<set_output_copy>},
    {"working_directory", guard<working_directory>},
    {"claim", guard<claim_output>},
    {"release", guard<release_output>},
    {"stop_signal", guard<stop_signal>},
    {"spawn", guard<spawn>},
    {"wait", guard<wait_for_process>},
    {nullptr, nullptr},
};

const Binding run_binding{"run", [](lua_State* lua) {
                            lua_newtable(lua);
                            add_functions(lua, kRunFunctions);
                            lua_setfield(lua, -2, "_run");
                          }};

}  // namespace

void copy_output(lua_State* lua, const std::string& text) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kOutputKey) != LUA_TFUNCTION) return lua_pop(lua, 1);
  push(lua, text);
  lua_call(lua, 1, 0);
}

void begin_run(lua_State* lua) {
  const Context& run = context(lua);
  if (run.run_name.empty() && run.resume.empty()) return;
  push_embedded(lua, "internal.run_folder", "begin");
  call_traced(lua, 0, 0);
}

void end_run(lua_State* lua, int status, const std::string& error, bool follows) {
  luaL_getsubtable(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  const bool loaded = lua_getfield(lua, -1, "moonhalo.internal.run_folder") != LUA_TNIL;
  lua_pop(lua, 2);
  if (!loaded) return;
  push_embedded(lua, "internal.run_folder", "finish");
  push(lua, static_cast<int64_t>(status));
  push(lua, error);
  push(lua, follows);
  call_traced(lua, 3, 0);
}

}  // namespace moonhalo::scripting
