// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>

namespace moonhalo::testing {

/// The contents of a trace in Chrome's format, and the problems that a viewer would have with it.
struct ChromeTrace {
  std::string problems;  ///< a line each: events of a row that do not nest, arrows without both ends, bad fields
  size_t events = 0, processes = 0;
  std::map<std::string, size_t> arrows;  ///< by name
  std::set<std::string> names, rows;
};
ChromeTrace load_chrome_trace(const std::string& text);

}  // namespace moonhalo::testing
