// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/errors.h"

#include <c10/util/Exception.h>

#include "moonhalo/scripting/core/torch_messages.h"

namespace moonhalo::scripting {

std::string plain_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return in_lua(torch_error ? torch_error->what_without_backtrace() : error.what());
}

}  // namespace moonhalo::scripting
