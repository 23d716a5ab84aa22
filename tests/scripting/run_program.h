// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "moonhalo/scripting/program/commands.h"

namespace moonhalo::scripting {

/// The end of a run of the `moonhalo` program.
struct Result {
  int status;
  std::string out, err;
  std::chrono::steady_clock::duration time;
};

/// Runs the program with `arguments` in this process.
inline Result run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "moonhalo");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto start = std::chrono::steady_clock::now();
  const int status = command_line(static_cast<int>(argv.size()), argv.data());
  const auto time = std::chrono::steady_clock::now() - start;
  std::fflush(stdout);
  const std::string err = ::testing::internal::GetCapturedStderr();
  return {status, ::testing::internal::GetCapturedStdout(), err, time};
}

}  // namespace moonhalo::scripting
