// SPDX-License-Identifier: Apache-2.0
#include "scripting/commands.h"

int main(int argc, char** argv) { return moonhalo::scripting::command_line(argc, argv); }
