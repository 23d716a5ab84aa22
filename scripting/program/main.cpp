// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "moonhalo/scripting/program/commands.h"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // says GCC
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Ends the process once all that began after main has been finished (MPI, HDF5, static objects of functions). What is
/// left are the tables of libraries: a tenth of a second in which LibTorch takes its operators apart one by one.
/// Sanitizers, and tools that watch CUDA's driver, report after that; there the usual way is gone.
void leave(int status, void*) {
  if (kSanitized || dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr) return;
  std::fflush(nullptr);
  std::_Exit(status & 0xff);
}

}  // namespace

int main(int argc, char** argv) {
  on_exit(leave, nullptr);
  // Beyond the limit on file sizes a write fails, with a message, instead of ending the program.
  std::signal(SIGXFSZ, SIG_IGN);
  return moonhalo::scripting::command_line(argc, argv);
}
