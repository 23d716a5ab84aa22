// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/division.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"

namespace moonhalo {
namespace {

std::string limit_text(int64_t most) { return most == DivisionSpace::kAny ? "any" : std::to_string(most); }

// The space as an error shows it.
std::string space_text(const DivisionSpace& space) {
  return "ranks " + std::to_string(space.ranks) + ", at most data " + limit_text(space.most_data) + ", rows " +
         limit_text(space.most_rows) + ", columns " + limit_text(space.most_columns) + ", tensor " +
         limit_text(space.most_tensor) + ", stages " + limit_text(space.most_stages) + ", samples " +
         limit_text(space.samples) + ", micro-batches " + list_string(space.micro_batches, '{', '}') + ", " +
         (space.may_copy ? "copied" : "not copied") + ", " + (space.may_store ? "stored" : "not stored") +
         (space.may_recompute ? ", recomputed" : "");
}

// All ways to share out the ranks of a stage, with this number of micro-batches in a step.
void add_divisions(const DivisionSpace& space, int64_t stages, int64_t micro_batches, std::vector<Division>& all) {
  const auto add = [&](Division division) {
    all.push_back(division);
    division.recomputes = true;
    if (space.may_recompute) all.push_back(division);
  };
  const auto divides = [](int64_t size, int64_t of) { return of % size == 0; };
  const int64_t ranks = space.ranks / stages;
  for (int64_t data = std::min({ranks, space.most_data, space.samples / micro_batches}); data >= 1; --data) {
    if (!divides(data, ranks)) continue;
    const int64_t of_data = ranks / data;
    for (int64_t rows = std::min(of_data, space.most_rows); rows >= 1; --rows) {
      if (!divides(rows, of_data)) continue;
      const int64_t of_rows = of_data / rows;
      for (int64_t columns = std::min(of_rows, space.most_columns); columns >= 1; --columns) {
        Division division{.data = data, .rows = rows, .columns = columns, .tensor = of_rows / columns};
        if (!divides(columns, of_rows) || division.tensor > space.most_tensor) continue;
        division.stages = stages;
        division.micro_batches = micro_batches;
        if (space.may_copy || data == 1 || stages > 1) add(division);
        division.is_stored = true;
        if (space.may_store && data > 1 && stages == 1) add(division);
      }
    }
  }
}

void check_micro_batches(const DivisionSpace& space) {
  const bool is_known = space.samples != DivisionSpace::kAny;
  for (const int64_t micro_batches : space.micro_batches) {
    TORCH_CHECK_VALUE(micro_batches >= 1 && (!is_known || space.samples % micro_batches == 0),
                      "search: ", micro_batches,
                      " micro-batches are not equal parts of the samples of a step\n  have  ", space_text(space),
                      "\n  fix   numbers of micro-batches that divide the number of samples");
  }
}

}  // namespace

std::string Division::text() const {
  const std::vector<int64_t> sizes = pipeline_mesh_shape();
  const std::vector<std::string> names = pipeline_mesh_names();
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) text += (text.empty() ? "" : ", ") + names[i] + " " + std::to_string(sizes[i]);
  }
  if (text.empty()) text = "one rank";
  if (micro_batches > 1) text += ", micro-batches " + std::to_string(micro_batches);
  return text + (is_stored ? ", stored" : "") + (recomputes ? ", recomputed" : "");
}

std::vector<Division> divisions_of(const DivisionSpace& space) {
  const int64_t least = std::min(
      {space.ranks, space.most_data, space.most_rows, space.most_columns, space.most_tensor, space.most_stages});
  TORCH_CHECK_VALUE(least >= 1, "search: numbers of ranks are at least 1\n  have  ", space_text(space),
                    "\n  fix   1 where there is nothing to cut");
  check_micro_batches(space);
  std::vector<Division> all;
  for (int64_t stages = 1; stages <= std::min(space.ranks, space.most_stages); ++stages) {
    if (space.ranks % stages != 0) continue;
    for (const int64_t micro_batches : space.micro_batches) add_divisions(space, stages, micro_batches, all);
  }
  TORCH_CHECK_VALUE(!all.empty(), "search: there is no division of ", plural(space.ranks, "rank"), "\n  have  ",
                    space_text(space), "\n  fix   another number of ranks, or more samples, rows, features or stages");
  return all;
}

}  // namespace moonhalo
