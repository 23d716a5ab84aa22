// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moonhalo::scripting {

/// Drops what this process writes to stdout while it exists.
class SilentOutput {
 public:
  SilentOutput();
  ~SilentOutput();
  SilentOutput(const SilentOutput&) = delete;
  SilentOutput& operator=(const SilentOutput&) = delete;

 private:
  int kept_ = -1;
};

}  // namespace moonhalo::scripting
