// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/profile/memory_note.h"
#include "moonhalo/engine/profile/profile_summary.h"

namespace moonhalo {
namespace {

using Row = ProfileSummary::Row;

std::string number(double value, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// Steps of all ranks together: what sums are divided by.
double rank_steps(const ProfileSummary& summary) {
  return static_cast<double>(std::max<int64_t>(1, summary.ranks) * std::max<int64_t>(1, std::ssize(summary.steps)));
}

std::string milliseconds(double nanoseconds) { return number(nanoseconds / 1e6, 3); }

std::string percent(double part, double whole) { return whole > 0 ? number(100 * part / whole, 1) + " %" : "-"; }

// Rows of cells as text: the first column is left-aligned, the others right-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = row[0] + std::string(widths[0] - row[0].size(), ' ');
    for (size_t c = 1; c < row.size(); ++c) line += "  " + std::string(widths[c] - row[c].size(), ' ') + row[c];
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string bytes(double count) { return count > 0 ? bytes_text(count) : "-"; }

// "812", "1.5 k", "2.3 M", ...
std::string macs_text(double count) {
  if (count <= 0) return "-";
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  for (; count >= 1000 && unit + 1 < std::size(kUnits); ++unit) count /= 1000;
  return number(count, unit == 0 ? 0 : 1) + kUnits[unit];
}

// MACs of a nanosecond are thousands of millions of a second.
std::string rate_text(const Row& row) {
  if (row.macs <= 0 || row.mac_time <= 0) return "-";
  const double rate = static_cast<double>(row.macs) / static_cast<double>(row.mac_time);
  return number(rate, rate < 10 ? 2 : 1);
}

std::string headline(const ProfileSummary& summary) {
  const int64_t steps = std::ssize(summary.steps);
  std::string text = "step " + milliseconds(static_cast<double>(summary.step_time) / rank_steps(summary)) + " ms (" +
                     plural(steps, "step") + ", " + plural(summary.ranks, "rank") + "):";
  for (size_t share = 0; share < ProfileSummary::kShares; ++share) {
    text += (share > 0 ? ", " : " ") + std::string(ProfileSummary::name(static_cast<ProfileSummary::Share>(share))) +
            " " + percent(static_cast<double>(summary.shares[share]), static_cast<double>(summary.step_time));
  }
  text += "\n";
  if (const std::string late = latest_rank(summary.skew, steps); !late.empty()) text += late + "\n";
  for (const std::string& note : summary.notes) text += note + "\n";
  return text;
}

}  // namespace

ProfileSort parse_profile_sort(const std::string& text) {
  const std::vector<std::string> known = {"self", "total", "calls", "name", "own", "blocked", "macs"};
  const auto found = std::find(known.begin(), known.end(), text);
  TORCH_CHECK_VALUE(found != known.end(), "profile: no column '", text, "' to sort by", did_you_mean(text, known),
                    "\n  have  \"", text,
                    "\"\n  fix   use \"self\", \"total\", \"calls\", \"name\", \"own\", \"blocked\" or \"macs\"");
  return static_cast<ProfileSort>(found - known.begin());
}

std::string profile_table(const ProfileSummary& summary, ProfileBy by, ProfileSort sort, size_t most_rows) {
  std::vector<Row> rows = summary.table(by);
  const auto before = [sort](const Row& a, const Row& b) {
    if (sort == ProfileSort::kTotal && a.total != b.total) return a.total > b.total;
    if (sort == ProfileSort::kCalls && a.calls != b.calls) return a.calls > b.calls;
    if (sort == ProfileSort::kOwn && a.self - a.blocked != b.self - b.blocked)
      return a.self - a.blocked > b.self - b.blocked;
    if (sort == ProfileSort::kBlocked && a.blocked != b.blocked) return a.blocked > b.blocked;
    if (sort == ProfileSort::kMacs && a.macs != b.macs) return a.macs > b.macs;
    if (sort == ProfileSort::kSelf && a.self != b.self) return a.self > b.self;
    return a.name < b.name;
  };
  std::sort(rows.begin(), rows.end(), before);
  const double steps = by == ProfileBy::kRank ? static_cast<double>(std::max<int64_t>(1, std::ssize(summary.steps)))
                                              : rank_steps(summary);
  const double whole = static_cast<double>(summary.step_time) / rank_steps(summary);
  std::vector<std::vector<std::string>> cells = {
      {name(by), "calls", "total ms", "self ms", "of step", "blocked ms", "own ms", "MACs", "GMAC/s", "sent"}};
  for (size_t i = 0; i < rows.size() && i < most_rows; ++i) {
    const Row& row = rows[i];
    const double self = static_cast<double>(row.self) / steps;
    cells.push_back({row.name, number(static_cast<double>(row.calls) / steps, 1),
                     milliseconds(static_cast<double>(row.total) / steps), milliseconds(self), percent(self, whole),
                     milliseconds(static_cast<double>(row.blocked) / steps),
                     milliseconds(static_cast<double>(row.self - row.blocked) / steps),
                     macs_text(static_cast<double>(row.macs) / steps), rate_text(row),
                     bytes(static_cast<double>(row.bytes) / steps)});
  }
  std::string text = headline(summary) + "\n" + aligned(cells);
  if (rows.size() > most_rows) text += "and " + std::to_string(rows.size() - most_rows) + " more\n";
  return text;
}

std::string memory_table(const ProfileSummary& summary, size_t most_rows) {
  const ProfileSummary::Memory& memory = summary.memory;
  if (memory.peak == 0) return "memory was not counted\n";
  std::vector<std::vector<std::string>> cells = {{"made in", "part", "bytes", "of peak"}};
  for (size_t i = 0; i < memory.held.size() && i < most_rows; ++i) {
    const auto& held = memory.held[i];
    cells.push_back({held.module, held.part.empty() ? "-" : held.part, bytes(static_cast<double>(held.bytes)),
                     percent(static_cast<double>(held.bytes), static_cast<double>(memory.peak))});
  }
  std::string text = "peak of tensors in host memory: " + bytes(static_cast<double>(memory.peak)) + ", on rank " +
                     std::to_string(memory.rank) + "\n\n" + aligned(cells);
  if (memory.held.size() > most_rows) text += "and " + std::to_string(memory.held.size() - most_rows) + " more\n";
  return text;
}

std::string compare_profiles(const ProfileSummary& before, const ProfileSummary& after, ProfileBy by,
                             size_t most_rows) {
  struct Pair {
    double before = 0, after = 0;
  };
  std::map<std::string, Pair> pairs;
  for (const Row& row : before.table(by)) pairs[row.name].before = static_cast<double>(row.self) / rank_steps(before);
  for (const Row& row : after.table(by)) pairs[row.name].after = static_cast<double>(row.self) / rank_steps(after);
  std::vector<std::pair<std::string, Pair>> rows(pairs.begin(), pairs.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return std::abs(a.second.after - a.second.before) > std::abs(b.second.after - b.second.before);
  });
  std::vector<std::vector<std::string>> cells = {{name(by), "before ms", "after ms", "change ms", "change"}};
  for (size_t i = 0; i < rows.size() && i < most_rows; ++i) {
    const auto& [name, pair] = rows[i];
    const double change = pair.after - pair.before;
    cells.push_back({name, milliseconds(pair.before), milliseconds(pair.after),
                     (change > 0 ? "+" : "") + milliseconds(change), percent(change, pair.before)});
  }
  std::string text = "before: " + headline(before) + "after:  " + headline(after) + "\n" + aligned(cells);
  if (rows.size() > most_rows) text += "and " + std::to_string(rows.size() - most_rows) + " more\n";
  return text;
}

}  // namespace moonhalo
