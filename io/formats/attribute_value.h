// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace moonhalo::io {

/// The value of an attribute. One element is a number or a string, several are a list, and an empty attribute is an
/// empty list of strings. Unsigned 64-bit numbers beyond the signed range become doubles.
using AttributeValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                    std::vector<std::string>>;
using Attributes = std::map<std::string, AttributeValue>;

/// Returns the value as text for messages: `K`, `3.5`, `[1, 2]`. Not collective.
std::string to_string(const AttributeValue& value);

}  // namespace moonhalo::io
