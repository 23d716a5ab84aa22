// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/search_report.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/profile/memory_note.h"

namespace moonhalo {
namespace {

using Json = nlohmann::ordered_json;
using Fate = DivisionResult::Fate;

constexpr int64_t kMostRows = 12;  // of the table

// In the order in which results are ranked.
constexpr std::array<std::pair<Fate, const char*>, 5> kFates{{{Fate::kForecast, "forecast"},
                                                              {Fate::kSlowBound, "slower by its bound"},
                                                              {Fate::kNotNeeded, "fits without recomputation"},
                                                              {Fate::kTooLarge, "too large"},
                                                              {Fate::kLargeBound, "too large by its bound"}}};

size_t place_of(Fate fate) {
  size_t place = 0;
  while (kFates[place].first != fate) ++place;
  return place;
}

// The part of the step that is longer than that of the best, and by how much.
std::string longest_part(const DivisionResult& one, const DivisionResult& best) {
  const std::array<std::pair<double, const char*>, 3> more{{{one.computing - best.computing, "more computing"},
                                                            {one.messages - best.messages, "more messages"},
                                                            {one.waiting - best.waiting, "more waiting"}}};
  const auto most = std::max_element(more.begin(), more.end());
  if (most->first <= 0) return "";
  return ": " + seconds_text(most->first) + " " + most->second;
}

std::string why_not_best(const DivisionResult& one, const DivisionResult& best, int64_t limit) {
  if (one.fate == Fate::kLargeBound)
    return "parameters, gradients and states alone need " + bytes_text(one.bound.memory) + " of " + bytes_text(limit);
  if (one.fate == Fate::kTooLarge) return "needs " + bytes_text(one.memory) + " of " + bytes_text(limit);
  if (one.fate == Fate::kNotNeeded) return "never faster than the same one that keeps activations, which fits";
  // The bound of a division that recomputes is the time of the same one that keeps activations, where that is known.
  if (one.fate == Fate::kSlowBound && one.bound.step > one.bound.computing + one.bound.messages + one.bound.waiting)
    return "not below " + seconds_text(one.bound.step) + ", which the same one takes that keeps activations";
  if (one.fate == Fate::kSlowBound)
    return "not below " + seconds_text(one.bound.step) + ", which rank " + std::to_string(one.bound.rank) +
           " takes alone: computing " + seconds_text(one.bound.computing) + ", messages " +
           seconds_text(one.bound.messages) + ", waiting " + seconds_text(one.bound.waiting);
  if (one.measured && best.measured)
    return "measured " + seconds_text(*one.measured - *best.measured) + " slower" + longest_part(one, best);
  if (best.measured) return "not among the best forecasts" + longest_part(one, best);
  if (one.step == best.step) return "as fast as the best";
  return seconds_text(one.step - best.step) + " slower" + longest_part(one, best);
}

std::string why_best(const DivisionResult& best) {
  std::string text = best.measured ? "the fastest one measured" : "the fastest forecast";
  text += ": computing " + seconds_text(best.computing) + ", messages " + seconds_text(best.messages) + ", waiting " +
          seconds_text(best.waiting);
  return text;
}

std::string cell(const std::string& text, int width) {
  char line[256];
  std::snprintf(line, sizeof line, "%*s", width, text.c_str());
  return line;
}

// The fields of an object by their names in JSON, in this order: one list for writing and reading.
template <typename Object, typename Field>
void division_fields(Object& division, const Field& field) {
  field("data", division.data);
  field("rows", division.rows);
  field("columns", division.columns);
  field("tensor", division.tensor);
  field("stored", division.is_stored);
  field("recompute", division.recomputes);
  field("stages", division.stages);
  field("micro_batches", division.micro_batches);
}

template <typename Object, typename Field>
void forecast_fields(Object& one, const Field& field) {
  field("step", one.step);
  field("low", one.low);
  field("high", one.high);
  field("computing", one.computing);
  field("messages", one.messages);
  field("waiting", one.waiting);
  field("memory", one.memory);
  field("sent", one.sent);
}

template <typename Object, typename Field>
void bound_fields(Object& bound, const Field& field) {
  field("step", bound.step);
  field("computing", bound.computing);
  field("messages", bound.messages);
  field("waiting", bound.waiting);
  field("rank", bound.rank);
  field("memory", bound.memory);
}

template <typename Object, typename Field>
void search_fields(Object& result, const Field& field) {
  field("machine", result.machine);
  field("backend", result.backend);
  field("ranks", result.ranks);
  field("units", result.units);
  field("memory_limit", result.memory_limit);
  field("dry_runs", result.dry_runs);
  field("note", result.note);
}

auto writer_of(Json& json) {
  return [&json](const char* name, const auto& value) { json[name] = value; };
}

auto reader_of(const Json& json) {
  return [&json](const char* name, auto& value) { json.at(name).get_to(value); };
}

Json result_json(const DivisionResult& one) {
  Json json;
  division_fields(one.division, writer_of(json));
  json["fate"] = kFates[place_of(one.fate)].second;
  forecast_fields(one, writer_of(json));
  bound_fields(one.bound, writer_of(json["bound"]));
  if (one.measured) json["measured"] = *one.measured;
  json["why"] = one.why;
  return json;
}

DivisionResult parse_result(const Json& json) {
  DivisionResult one;
  division_fields(one.division, reader_of(json));
  const std::string fate = json.at("fate");
  const auto known =
      std::find_if(kFates.begin(), kFates.end(), [&](const auto& entry) { return fate == entry.second; });
  TORCH_CHECK_VALUE(known != kFates.end(), "search: unknown fate '", fate, "'");
  one.fate = known->first;
  forecast_fields(one, reader_of(json));
  bound_fields(one.bound, reader_of(json.at("bound")));
  if (json.contains("measured")) one.measured = json.at("measured").get<double>();
  one.why = json.at("why");
  return one;
}

}  // namespace

bool fits(const DivisionResult& one) { return one.fate != Fate::kTooLarge && one.fate != Fate::kLargeBound; }

void rank_results(SearchResult& result) {
  const auto key = [](const DivisionResult& one) {
    const bool by_memory = !fits(one);
    const double time = one.measured ? *one.measured : one.fate == Fate::kForecast ? one.step : one.bound.step;
    // Divisions that are too large come last, whichever way that was found.
    return std::tuple(by_memory ? size_t{9} : place_of(one.fate), !one.measured,
                      by_memory ? static_cast<double>(one.memory) : time);
  };
  std::stable_sort(result.ranked.begin(), result.ranked.end(),
                   [&](const DivisionResult& a, const DivisionResult& b) { return key(a) < key(b); });
}

void explain(SearchResult& result) {
  const DivisionResult best = result.ranked.front();
  for (DivisionResult& one : result.ranked) one.why = why_not_best(one, best, result.memory_limit);
  if (fits(best)) result.ranked.front().why = why_best(best);
}

std::string to_text(const SearchResult& result) {
  std::string text =
      "search: " + plural(std::ssize(result.ranked), "division") + " of " + plural(result.ranks, "rank") +
      (result.units > 1 ? " in " + plural(result.units, "unit") : "") + " of '" + result.machine + "', messages by " +
      result.backend + "; " + std::to_string(result.dry_runs) + " of them dry run; " +
      (result.memory_limit > 0 ? "at most " + bytes_text(result.memory_limit) + " a rank" : "memory not limited") +
      "\n";
  size_t width = 8;
  for (const DivisionResult& one : result.ranked) width = std::max(width, one.division.text().size());
  const bool measured = std::any_of(result.ranked.begin(), result.ranked.end(),
                                    [](const DivisionResult& one) { return one.measured.has_value(); });
  const auto left = [&](const std::string& name) { return "  " + name + std::string(width - name.size(), ' '); };
  text += left("division") + (measured ? cell("measured", 12) : "") + cell("forecast", 12) + cell("bound", 12) +
          cell("memory", 11) + cell("sent", 11) + "  why\n";
  int64_t rows = 0;
  for (const DivisionResult& one : result.ranked) {
    if (one.fate == Fate::kNotNeeded || ++rows > kMostRows) continue;
    const bool dry_run = one.fate == Fate::kForecast || one.fate == Fate::kTooLarge;
    text += left(one.division.text());
    if (measured) text += cell(one.measured ? seconds_text(*one.measured) : "-", 12);
    text += cell(dry_run ? seconds_text(one.step) : "-", 12) +
            cell(one.bound.step > 0 ? seconds_text(one.bound.step) : "-", 12) +
            cell((dry_run ? "" : "> ") + bytes_text(one.memory), 11) + cell(dry_run ? bytes_text(one.sent) : "-", 11) +
            "  " + one.why + "\n";
  }
  if (rows > kMostRows)
    text += "  " + plural(rows - kMostRows, "more division") + ": report.json, or to_json of C++, has all of them\n";
  if (!result.note.empty()) text += "  note: " + result.note + "\n";
  const auto left_out = std::count_if(result.ranked.begin(), result.ranked.end(),
                                      [](const DivisionResult& one) { return one.fate == Fate::kNotNeeded; });
  if (left_out > 0)
    text += "  " + std::to_string(left_out) +
            (left_out == 1 ? " more recomputes: never faster than the same one that keeps activations, which fits\n"
                           : " more recompute: never faster than the same ones that keep activations, which fit\n");
  return text;
}

std::string to_json(const SearchResult& result) {
  Json json;
  search_fields(result, writer_of(json));
  json["divisions"] = Json::array();
  for (const DivisionResult& one : result.ranked) json["divisions"].push_back(result_json(one));
  return json.dump(2);
}

SearchResult parse_search(const std::string& text) {
  SearchResult result;
  try {
    const Json json = Json::parse(text);
    search_fields(result, reader_of(json));
    for (const Json& one : json.at("divisions")) result.ranked.push_back(parse_result(one));
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "search: this is not the JSON of a search\n  have  ", error.what(),
                      "\n  fix   give what to_json wrote");
  }
  return result;
}

}  // namespace moonhalo
