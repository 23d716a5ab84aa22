// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/autograd.h>

#include <cstdint>

namespace moonhalo::testing {

/// A level of forward-mode derivatives. It belongs to the process, so the ranks, being threads of it, share one; where
/// one stays open, LibTorch hangs at the end of the process.
class DualLevel {
 public:
  DualLevel() : level_(torch::autograd::forward_ad::enter_dual_level()) {}
  ~DualLevel() { torch::autograd::forward_ad::exit_dual_level(level_); }
  DualLevel(const DualLevel&) = delete;
  DualLevel& operator=(const DualLevel&) = delete;
  int64_t index() const { return static_cast<int64_t>(level_); }

 private:
  uint64_t level_;
};

}  // namespace moonhalo::testing
