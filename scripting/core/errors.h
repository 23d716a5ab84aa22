// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

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

/// The names closest to `name` by edit distance, best first, at most `limit`; empty when none is
/// near.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& known, size_t limit = 3);
/// "; did you mean 'a' or 'b'?" or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace moonhalo::scripting
