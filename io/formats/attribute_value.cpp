// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/attribute_value.h"

#include <c10/util/StringUtil.h>

#include <sstream>
#include <type_traits>

namespace moonhalo::io {

std::string to_string(const AttributeValue& value) {
  std::ostringstream out;
  const auto list = [&](const auto& values) { out << '[' << c10::Join(", ", values) << ']'; };
  std::visit(
      [&](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, bool>) {
          out << (held ? "true" : "false");
        } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double> ||
                             std::is_same_v<T, std::string>) {
          out << held;
        } else {
          list(held);
        }
      },
      value);
  return out.str();
}

}  // namespace moonhalo::io
