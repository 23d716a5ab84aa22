// SPDX-License-Identifier: Apache-2.0
#include "tests/support/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace moonhalo::testing {
namespace {

using Json = nlohmann::json;
using Row = std::pair<int64_t, int64_t>;  // pid, tid

struct Slice {
  int64_t begin, end;  // nanoseconds
};

int64_t nanoseconds(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

struct Arrow {
  std::vector<std::pair<Row, int64_t>> starts, ends;
};

// Slices in the order of their beginnings, the longer ones first.
void check_nesting(std::vector<Slice> slices, std::string& problems) {
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Slice> open;
  for (const Slice& slice : slices) {
    while (!open.empty() && open.back().end <= slice.begin) open.pop_back();
    if (!open.empty() && slice.end > open.back().end) {
      problems += "events of a row do not nest\n";
      return;
    }
    open.push_back(slice);
  }
}

bool in_a_slice(const std::vector<Slice>& slices, int64_t at) {
  return std::any_of(slices.begin(), slices.end(), [at](const Slice& s) { return s.begin <= at && at <= s.end; });
}

}  // namespace

ChromeTrace load_chrome_trace(const std::string& text) {
  ChromeTrace trace;
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    trace.problems = error.what();
    return trace;
  }
  std::map<Row, std::vector<Slice>> rows;
  std::map<int64_t, Arrow> arrows;
  for (const Json& event : json.at("traceEvents")) {
    const std::string ph = event.at("ph");
    const Row row{event.at("pid"), event.value("tid", int64_t{-1})};
    if (ph == "M") {
      trace.processes += event.at("name") == "process_name" ? 1 : 0;
      if (event.at("name") == "thread_name") trace.rows.insert(event.at("args").at("name").get<std::string>());
    } else if (ph == "X") {
      ++trace.events;
      trace.names.insert(event.at("name").get<std::string>());
      const int64_t begin = nanoseconds(event.at("ts")), length = nanoseconds(event.at("dur"));
      if (begin < 0 || length < 0) trace.problems += "an event with a time below 0\n";
      rows[row].push_back({begin, begin + length});
    } else if (ph == "s" || ph == "f") {
      Arrow& arrow = arrows[event.at("id")];
      (ph == "s" ? arrow.starts : arrow.ends).emplace_back(row, nanoseconds(event.at("ts")));
      trace.arrows[event.at("name")] += ph == "s" ? 1 : 0;
    } else if (ph != "C") {
      trace.problems += "an event with ph " + ph + "\n";
    }
  }
  for (const auto& [row, slices] : rows) check_nesting(slices, trace.problems);
  for (const auto& [id, arrow] : arrows) {
    if (arrow.starts.size() != 1 || arrow.ends.size() != 1) {
      trace.problems += "an arrow without both ends\n";
      continue;
    }
    if (arrow.ends[0].second < arrow.starts[0].second) trace.problems += "an arrow that goes back in time\n";
    for (const auto& [row, at] : {arrow.starts[0], arrow.ends[0]}) {
      if (!in_a_slice(rows[row], at)) trace.problems += "an arrow whose end is in no event\n";
    }
  }
  return trace;
}

}  // namespace moonhalo::testing
