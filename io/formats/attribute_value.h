// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace moonhalo::io {

/// An attribute's value. One element is a number or string, several are a list; an empty attribute
/// is an empty list of strings. 64-bit unsigned numbers past the signed range become floating
/// point.
using AttributeValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                    std::vector<std::string>>;
using Attributes = std::map<std::string, AttributeValue>;

/// Writes the value for people: `K`, `3.5`, `[1, 2]`.
std::string to_string(const AttributeValue& value);

}  // namespace moonhalo::io
