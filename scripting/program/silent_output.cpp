// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/silent_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace moonhalo::scripting {

SilentOutput::SilentOutput() {
  std::fflush(stdout);
  kept_ = dup(STDOUT_FILENO);
  const int nowhere = open("/dev/null", O_WRONLY);
  if (kept_ >= 0 && nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
  if (nowhere >= 0) close(nowhere);
}

SilentOutput::~SilentOutput() {
  std::fflush(stdout);
  if (kept_ < 0) return;
  dup2(kept_, STDOUT_FILENO);
  close(kept_);
}

}  // namespace moonhalo::scripting
