// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace moonhalo {

/// "[2, 3]"
std::string shape_string(c10::IntArrayRef shape);
/// "{2, 3}" for the brackets '{' and '}'.
std::string list_string(c10::IntArrayRef values, char open, char close);

/// "1 rank", "2 ranks"; "2 processes" with the ending "es".
std::string plural(int64_t count, const std::string& one, const char* ending = "s");

/// A time with three digits: "0.037 ms", "1.94 ms", "12.3 s", "10.4 min", "2.50 h"; "0 ms" if it is 0.
std::string seconds_text(double seconds);

/// The names closest to `name` by edit distance, best first, at most `limit`; empty when none is near.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& known, size_t limit = 3);
/// "; did you mean 'a' or 'b'?" or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);
/// The same where other programs have other names: a name that is a key of `elsewhere` means that key's value.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known,
                         const std::map<std::string, std::string, std::less<>>& elsewhere);

}  // namespace moonhalo
