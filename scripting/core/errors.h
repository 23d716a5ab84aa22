// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace moonhalo::scripting {

/// A Lua error on its way through C++ code that only understands C++ exceptions (an autograd hook,
/// a rank's thread). `what()` is the Lua message with its script position; `traceback()` is empty
/// unless the error was caught by `call_traced`. Caught by `guard`, it becomes the same Lua error
/// again.
class LuaError : public std::runtime_error {
 public:
  explicit LuaError(const std::string& message, std::string traceback = {})
      : std::runtime_error(message), traceback_(std::move(traceback)) {}
  const std::string& traceback() const { return traceback_; }

 private:
  std::string traceback_;
};

/// The text of an exception without LibTorch's C++ stack, and with remedies for Lua.
std::string plain_message(const std::exception& error);

}  // namespace moonhalo::scripting
