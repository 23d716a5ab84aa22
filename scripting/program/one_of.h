// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/StringUtil.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "moonhalo/engine/base/text.h"

namespace moonhalo::scripting {

/// Checks that an option has one of these values. The error names the nearest one.
inline CLI::Validator one_of(const std::vector<std::string>& known) {
  const std::string list = c10::Join(", ", known);
  return CLI::Validator(
      [known, list](std::string& text) {
        if (std::find(known.begin(), known.end(), text) != known.end()) return std::string();
        return "'" + text + "' is none of " + list + did_you_mean(text, known);
      },
      "{" + c10::Join(",", known) + "}");
}

}  // namespace moonhalo::scripting
