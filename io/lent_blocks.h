// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::io {

/// The blocks of ranks that are threads of one process, for each of them to write into. A block stays alive as long as
/// any rank may write into it, also where its owner has left because of an error.
class LentBlocks {
 public:
  /// True if the ranks of a group can do so. The same answer on every rank.
  static bool possible(const Communicator& group);
  /// Lends this rank's block to the others. Collective over the group.
  LentBlocks(Communicator& group, const at::Tensor& mine);
  /// By rank. What is written there is seen after the next collective call.
  const std::vector<at::Tensor>& all() const { return blocks_; }

 private:
  class Loan {
   public:
    explicit Loan(const at::Tensor& block);
    Loan(const Loan&) = delete;
    ~Loan();
    const int64_t number;
  };
  Loan loan_;
  std::vector<at::Tensor> blocks_;
};

}  // namespace moonhalo::io
