// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>

#include "moonhalo/engine/base/scoped_value.h"

namespace moonhalo {

/// While it exists, keeps the last error of an operator on ShardTensors of this thread. LibTorch's interpreter of
/// TorchScript turns every error into one of its own type, so its callers ask here which error it was.
class KeptError {
 public:
  KeptError();
  KeptError(const KeptError&) = delete;
  KeptError& operator=(const KeptError&) = delete;

  /// Keeps the exception that is being handled, in the newest KeptError of this thread. Does nothing if there is none.
  static void keep() noexcept;
  /// Null if no operator has failed.
  const std::exception_ptr& error() const { return error_; }

 private:
  ScopedValue<KeptError*> newest_;
  std::exception_ptr error_;
};

}  // namespace moonhalo
