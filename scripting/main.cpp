// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "engine/one_heap.h"
#include "scripting/commands.h"

int main(int argc, char** argv) {
  moonhalo::share_one_heap();
  std::signal(SIGXFSZ, SIG_IGN);  // beyond the limit on file sizes a write fails, with a message, instead of ending the program
  return moonhalo::scripting::command_line(argc, argv);
}
