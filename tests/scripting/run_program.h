// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "moonhalo/scripting/program/commands.h"

namespace moonhalo::scripting {

/// The end of a run of the `moonhalo` program.
struct Result {
  int status;
  std::string out, err;
};

/// Runs the program with `arguments` in this process.
inline Result run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "moonhalo");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int status = command_line(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  const std::string err = ::testing::internal::GetCapturedStderr();
  return {status, ::testing::internal::GetCapturedStdout(), err};
}

}  // namespace moonhalo::scripting
