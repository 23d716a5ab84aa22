// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "moonhalo/scripting/program/commands.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ,
              SIG_IGN);  // beyond the limit on file sizes a write fails, with a message, instead of ending the program
  return moonhalo::scripting::command_line(argc, argv);
}
