// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/report.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

namespace moonhalo::scripting {

namespace {

/// "rank 3", "ranks 0-2, 5"
std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::ostringstream text;
  text << (ranks.size() == 1 ? "rank " : "ranks ");
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text << (i > 0 ? ", " : "") << ranks[i];
    if (last > i) text << "-" << ranks[last];
    i = last + 1;
  }
  return text.str();
}

/// Returns the lines of a traceback in the user's files: those of embedded files and of C functions say
/// nothing to them.
std::string shown_traceback(const std::string& traceback) {
  std::istringstream lines(traceback);
  std::string line, text;
  while (std::getline(lines, line)) {
    const bool hidden = line.starts_with("\tmoonhalo.") || line.starts_with("\t[C]") || line == "\t(...tail calls...)";
    if (!hidden) text += line + "\n";
  }
  return std::count(text.begin(), text.end(), '\n') > 2 ? text : "";
}

}  // namespace

void ErrorReport::add(int64_t rank, const LuaError& error, bool secondary) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({rank, error.what(), error.traceback(), secondary});
}

bool ErrorReport::empty() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

bool ErrorReport::only_secondary() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.secondary; });
}

std::string ErrorReport::text(int64_t world_size) const {
  const bool all = only_secondary();
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::vector<int64_t>> ranks;
  std::vector<const Entry*> distinct;
  for (const Entry& entry : entries_) {
    if (entry.secondary && !all) continue;
    std::vector<int64_t>& same = ranks[entry.message];
    if (same.empty()) distinct.push_back(&entry);
    same.push_back(entry.rank);
  }
  std::ostringstream text;
  for (const Entry* entry : distinct) {
    std::vector<int64_t>& same = ranks[entry->message];
    std::sort(same.begin(), same.end());
    if (world_size > 1) text << ranks_text(same) << ": ";
    text << entry->message << "\n" << place_in_script(entry->message, entry->traceback);
  }
  return text.str();
}

std::string place_in_script(const std::string& message, const std::string& traceback) {
  return source_line(message) + shown_traceback(traceback);
}

std::string source_line(const std::string& message) {
  const size_t colon = message.find(".lua:");
  if (colon == std::string::npos || message.find('\n') < colon) return "";
  const std::string path = message.substr(0, colon + 4);
  const size_t digits = message.find_first_not_of("0123456789", colon + 5);
  if (digits == colon + 5 || digits == std::string::npos || message[digits] != ':') return "";
  const int required = std::stoi(message.substr(colon + 5, digits - colon - 5));
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (number < required) continue;
    std::ostringstream text;
    text << "  " << number << " | " << line << "\n";
    return text.str();
  }
  return "";
}

}  // namespace moonhalo::scripting
