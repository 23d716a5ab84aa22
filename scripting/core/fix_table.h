// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace moonhalo::scripting {

/// A mistake of a script, by name, and its remedy.
struct NamedFix {
  std::string_view name, fix;
};

/// "\n  fix   ..." for `name`, "" if the table lacks it.
template <size_t kCount>
std::string fix_of(const NamedFix (&table)[kCount], std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(table), std::end(table), [&](const NamedFix& known) { return known.name == name; });
  return found == std::end(table) ? "" : std::string("\n  fix   ").append(found->fix);
}

}  // namespace moonhalo::scripting
