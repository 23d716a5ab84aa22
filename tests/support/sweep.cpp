// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "tests/support/placements.h"
#include "tests/support/test_device.h"

namespace moonhalo::testing {
namespace {

std::vector<Way> ways(const Row& row) {
  const char* more = std::getenv("MOONHALO_SWEEP");
  const int times = more != nullptr ? std::max(1, std::atoi(more)) : 1;
  Draw draw(row.name);
  std::vector<Way> all;
  for (int time = 0; time < times; ++time) {
    for (Way& way : draw_ways(draw, row.inputs)) all.push_back(std::move(way));
  }
  return all;
}

struct Tally {
  int right = 0, gathered = 0, refused = 0, wrong = 0;
  std::map<std::string, int> gathers;
  std::string refusal;
};

}  // namespace

void sweep(const std::vector<Row>& rows) {
  std::ostringstream table;
  for (const Row& row : rows) {
    Tally tally;
    for (const Way& way : ways(row)) {
      const Verdict verdict = judge(way, row.run,
                                    {.tolerance = row.allowed.tolerance,
                                     .backward = row.allowed.backward,
                                     .same_cut_gradients = !row.allowed.other_cut});
      for (const auto& [name, times] : verdict.gathered) ++tally.gathers[name];
      if (!verdict.wrong.empty()) {
        ++tally.wrong;
        ADD_FAILURE() << row.name << " on " << way.to_string() << ":\n" << verdict.wrong;
      } else if (!verdict.refusal.empty()) {
        ++tally.refused;
        tally.refusal = verdict.refusal.substr(0, verdict.refusal.find('\n'));
        if (!row.allowed.refuse)
          ADD_FAILURE() << row.name << " refuses " << way.to_string() << ":\n" << verdict.refusal;
      } else if (!verdict.gathered.empty()) {
        ++tally.gathered;
        if (!row.allowed.gather && !is_gathered_on_devices(verdict.gathered.begin()->first))
          ADD_FAILURE() << row.name << " gathers " << verdict.gathered.begin()->first << " on " << way.to_string();
      } else {
        ++tally.right;
      }
    }
    char line[160];
    std::snprintf(line, sizeof line, "%-28s %3d on blocks %3d gathered %3d refused %3d wrong ", row.name.c_str(),
                  tally.right, tally.gathered, tally.refused, tally.wrong);
    table << line;
    for (const auto& [name, times] : tally.gathers) table << " " << name << " x" << times;
    if (!tally.refusal.empty()) table << "  " << tally.refusal;
    table << "\n";
  }
  std::fputs(table.str().c_str(), stdout);
}

}  // namespace moonhalo::testing
