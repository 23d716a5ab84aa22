// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/text.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <tuple>

namespace moonhalo {
namespace {

/// Levenshtein distance in which swapped neighbours count one.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string question(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = "; did you mean ";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += "'" + names[i] + "'";
  }
  return text + "?";
}

}  // namespace

std::string list_string(c10::IntArrayRef values, char open, char close) {
  std::string text(1, open);
  for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + close;
}

std::string shape_string(c10::IntArrayRef shape) { return list_string(shape, '[', ']'); }

std::string plural(int64_t count, const std::string& one, const char* ending) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : ending);
}

std::string seconds_text(double seconds) {
  struct Unit {
    double seconds, limit;  // of the values that have it
    const char* name;
  };
  constexpr Unit kUnits[] = {{1e-3, 999.5, " ms"}, {1, 60, " s"}, {60, 60, " min"}, {3600, 0, " h"}};
  if (seconds == 0) return "0 ms";
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && seconds / kUnits[unit].seconds >= kUnits[unit].limit) ++unit;
  const double value = seconds / kUnits[unit].seconds;
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : 3;
  char text[400];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text + std::string(kUnits[unit].name);
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& known, size_t limit) {
  const size_t worst = std::max<size_t>(1, name.size() / 3);
  std::vector<std::pair<size_t, const std::string*>> near;
  for (const std::string& candidate : known) {
    const size_t longer = std::max(candidate.size(), name.size());
    if (longer - std::min(candidate.size(), name.size()) > worst) continue;
    if (const size_t d = distance(name, candidate); d <= worst) near.emplace_back(d, &candidate);
  }
  std::sort(near.begin(), near.end(),
            [](const auto& a, const auto& b) { return std::tie(a.first, *a.second) < std::tie(b.first, *b.second); });
  std::vector<std::string> names;
  for (const auto& [d, candidate] : near) {
    if (names.size() == limit) break;
    if (names.empty() || names.back() != *candidate) names.push_back(*candidate);
  }
  return names;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  return question(nearest_names(name, known));
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known,
                         const std::map<std::string, std::string, std::less<>>& elsewhere) {
  const auto other = elsewhere.find(name);
  return other == elsewhere.end() ? did_you_mean(name, known) : question({other->second});
}

}  // namespace moonhalo
