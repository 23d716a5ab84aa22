// SPDX-License-Identifier: Apache-2.0
#include "engine/one_heap.h"
#include "scripting/commands.h"

int main(int argc, char** argv) {
  moonhalo::share_one_heap();
  return moonhalo::scripting::command_line(argc, argv);
}
