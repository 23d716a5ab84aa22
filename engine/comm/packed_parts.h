// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/comm/message.h"

namespace moonhalo {

/// Messages of parts on their way through a communicator that sends what lies in one piece.
class PackedParts {
 public:
  /// Gives every message of parts a `data` that holds what is sent, or what will come.
  PackedParts(std::vector<Message>& sends, std::vector<Message>& receives);
  /// `work`, whose end puts what came where it belongs.
  WorkPtr unpacking(WorkPtr work) &&;

 private:
  std::vector<Message> arriving_;
};

}  // namespace moonhalo
