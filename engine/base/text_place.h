// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

namespace moonhalo {

/// `text` in quotes for a message about its character `at` (from 0); of a long one, what is around that.
inline std::string shortened(const std::string& text, size_t at) {
  constexpr size_t kAround = 40;
  if (text.size() <= 2 * kAround) return "'" + text + "'";
  const size_t begin = std::min(at, text.size()) > kAround ? std::min(at, text.size()) - kAround : 0;
  const size_t end = std::min(text.size(), begin + 2 * kAround);
  return (begin > 0 ? "'..." : "'") + text.substr(begin, end - begin) + (end < text.size() ? "...'" : "'");
}

}  // namespace moonhalo
