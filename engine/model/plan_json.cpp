// SPDX-License-Identifier: Apache-2.0
// Plans as JSON: what a file says and what a Lua table is turned into are read by the same code.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/model/parallel_plan.h"

namespace moonhalo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ParallelStyle::Kind;

constexpr Kind kKinds[] = {Kind::kColwise,      Kind::kRowwise,       Kind::kPairwise, Kind::kSequence,
                           Kind::kPrepareInput, Kind::kPrepareOutput, Kind::kCustom};

std::vector<std::string> style_names() {
  std::vector<std::string> names;
  for (const Kind kind : kKinds) {
    if (kind != Kind::kCustom) names.emplace_back(name(kind));
  }
  return names;
}

bool is_placement(const std::string& text) {
  try {
    parse_placement(text);
    return true;
  } catch (const c10::ValueError&) {
    return false;
  }
}

Kind parse_kind(const std::string& text, const std::string& where) {
  for (const Kind kind : kKinds) {
    if (text == name(kind)) return kind;
  }
  TORCH_CHECK_VALUE(false, where, ": unknown style '", text, "'", did_you_mean(text, style_names()),
                    "\n  have  styles ", c10::Join(", ", style_names()), "\n  fix   ",
                    is_placement(text) ? "a placement is of a parameter: {\"parameter\": {\"fc1.weight\": [\"" + text +
                                             "\"]}}, or of an argument: {\"forward\": {\"fc1.input\": ...}}"
                                       : "name one of these");
}

void check_keys(const Json& object, const std::vector<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), key) != known.end(), where, ": unknown key '", key, "'",
                      did_you_mean(key, known), "\n  have  known keys ", c10::Join(", ", known),
                      "\n  fix   use one of these, or leave the key out");
  }
}

[[noreturn]] void wrong_type(const std::string& where, const char* expected, const Json& value) {
  TORCH_CHECK_TYPE(false, where, ": Expect ", expected, ", found ", value.type_name());
}

int64_t read_integer(const Json& value, const std::string& where) {
  if (!value.is_number_integer()) wrong_type(where, "an integer", value);
  const bool fits =
      !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  TORCH_CHECK_VALUE(fits, where, ": ", value.dump(), " is not an integer of 64 bits");
  return value.get<int64_t>();
}

Placement read_placement(const Json& value, const std::string& where) {
  if (!value.is_string()) wrong_type(where, "a placement, as \"S(0)\" or \"R\"", value);
  try {
    return parse_placement(value.get<std::string>());
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, where, ": ", error.what_without_backtrace());
  }
}

Placements read_placements(const Json& value, const std::string& where) {
  if (!value.is_array()) return {read_placement(value, where)};
  Placements placements;
  for (const Json& one : value) placements.push_back(read_placement(one, where));
  return placements;
}

bool is_entry(const Json& value) {
  return value.is_object() && (value.contains("placements") || value.contains("grad") || value.contains("async"));
}

bool read_flag(const Json& value, const std::string& where) {
  if (!value.is_boolean()) wrong_type(where, "true or false", value);
  return value.get<bool>();
}

// Reads one parameter's or argument's entry: placements alone, or an object with flags.
ArgumentPlan read_entry(const Json& value, const std::vector<std::string>& keys, const std::string& where) {
  if (!value.is_object()) return {.required = read_placements(value, where)};
  check_keys(value, keys, where);
  ArgumentPlan entry;
  const auto given = [&](const char* key) { return value.contains(key) && !value[key].is_null(); };
  if (given("placements")) entry.required = read_placements(value["placements"], where + ".placements");
  if (given("plain")) entry.plain = read_placements(value["plain"], where + ".plain");
  if (given("grad")) entry.gradient = read_placements(value["grad"], where + ".grad");
  if (given("async")) entry.async = read_flag(value["async"], where + ".async");
  if (given("local")) entry.local = read_flag(value["local"], where + ".local");
  return entry;
}

// A list with null for what is left alone; an object names arguments, "0" being the first.
SignaturePlan read_arguments(const Json& value, const std::string& where) {
  SignaturePlan plan;
  const auto at = [&](size_t position) -> std::optional<ArgumentPlan>& {
    if (plan.by_position.size() <= position) plan.by_position.resize(position + 1);
    return plan.by_position[position];
  };
  const auto read = [&](const Json& one) {
    return read_entry(one, {"placements", "grad", "async", "plain", "local"}, where);
  };
  if (is_entry(value)) {
    at(0) = read(value);
    return plan;
  }
  if (value.is_object()) {
    for (const auto& [key, one] : value.items()) {
      if (one.is_null()) continue;
      const bool number = !key.empty() && key.size() < 4 && key.find_first_not_of("0123456789") == std::string::npos;
      if (number) {
        at(std::stoul(key)) = read(one);
      } else {
        plan.by_name[key] = read(one);
      }
    }
    return plan;
  }
  if (value.is_string()) {
    at(0) = read(value);
    return plan;
  }
  if (!value.is_array()) wrong_type(where, "a list with one entry per argument", value);
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_null()) at(i) = read(value[i]);
  }
  return plan;
}

ParallelStyle::Layouts read_layouts(const Json& value, const std::string& where) {
  if (value.is_string()) return {read_placement(value, where)};
  if (!value.is_array()) wrong_type(where, "a placement or a list of placements", value);
  ParallelStyle::Layouts layouts;
  for (const Json& one : value) {
    layouts.push_back(one.is_null() ? std::nullopt : std::optional(read_placement(one, where)));
  }
  return layouts;
}

std::vector<std::string> keys_of(Kind kind) {
  switch (kind) {
    case Kind::kColwise:
    case Kind::kRowwise:
    case Kind::kPairwise:
      return {"style", "input_layouts", "output_layouts", "use_local_output"};
    case Kind::kSequence:
      return {"style", "sequence_dim", "use_local_output"};
    case Kind::kPrepareInput:
      return {"style",
              "input_layouts",
              "desired_input_layouts",
              "input_kwarg_layouts",
              "desired_input_kwarg_layouts",
              "use_local_output"};
    case Kind::kPrepareOutput:
      return {"style", "output_layouts", "desired_output_layouts", "use_local_output"};
    case Kind::kCustom:
      return {"style", "number"};
  }
  return {};
}

bool is_style(const Json& value) { return value.is_object() && value.contains("style") && value["style"].is_string(); }

ParallelStyle read_style(const Json& value, const std::string& where) {
  if (value.is_string()) return {.kind = parse_kind(value.get<std::string>(), where)};
  if (!is_style(value)) wrong_type(where, "ParallelStyle", value);
  ParallelStyle style{.kind = parse_kind(value["style"].get<std::string>(), where)};
  check_keys(value, keys_of(style.kind), where);
  const auto given = [&](const char* key) { return value.contains(key) && !value[key].is_null(); };
  const auto layouts = [&](const char* key, std::optional<ParallelStyle::Layouts>& target) {
    if (given(key)) target = read_layouts(value[key], where + "." + key);
  };
  const auto named = [&](const char* key, std::map<std::string, std::optional<Placement>>& target) {
    if (!given(key)) return;
    if (!value[key].is_object()) wrong_type(where + "." + key, "argument names with a placement each", value[key]);
    for (const auto& [name, one] : value[key].items()) {
      target[name] = one.is_null() ? std::nullopt : std::optional(read_placement(one, where + "." + key));
    }
  };
  layouts("input_layouts", style.input_layouts);
  layouts("desired_input_layouts", style.desired_input_layouts);
  layouts("output_layouts", style.output_layouts);
  layouts("desired_output_layouts", style.desired_output_layouts);
  named("input_kwarg_layouts", style.input_kwarg_layouts);
  named("desired_input_kwarg_layouts", style.desired_input_kwarg_layouts);
  if (given("use_local_output")) {
    style.use_local_output = read_flag(value["use_local_output"], where + ".use_local_output");
  }
  if (given("sequence_dim")) style.sequence_dim = read_integer(value["sequence_dim"], where + ".sequence_dim");
  if (given("number")) style.custom = read_integer(value["number"], where + ".number");
  return style;
}

void read_forward(const std::string& key, const Json& value, ParallelPlan& plan, const std::string& source) {
  const std::string where = source + ".forward[\"" + key + "\"]";
  const size_t dot = key.rfind('.');
  const std::string side = dot == std::string::npos ? key : key.substr(dot + 1);
  std::string module = dot == std::string::npos ? "" : key.substr(0, dot);
  // In a regular expression the last dot is escaped.
  if (!module.empty() && (module.back() == '%' || module.back() == '\\')) module.pop_back();
  TORCH_CHECK_VALUE(side == "input" || side == "output", where, ": the name ends neither in .input nor in .output",
                    did_you_mean(side, {"input", "output"}));
  (side == "input" ? plan.inputs : plan.outputs).emplace_back(module, read_arguments(value, where));
}

ParallelPlan read_plan(const Json& json, const std::string& source) {
  ParallelPlan plan;
  if (json.is_string() || is_style(json)) {
    plan.styles.emplace_back("", read_style(json, source));
    return plan;
  }
  if (json.is_array() && json.empty()) return plan;
  if (!json.is_object())
    wrong_type(source, "ParallelStyle or table {name = ParallelStyle} or {parameter = ..., forward = ...}", json);
  bool styles = false;
  for (const auto& [key, value] : json.items()) styles |= value.is_string() || is_style(value);
  const bool placements = json.contains("parameter") || json.contains("forward");
  const bool tables = std::all_of(json.begin(), json.end(), [](const Json& value) { return value.is_structured(); });
  if (styles || (!placements && !tables)) {
    for (const auto& [key, value] : json.items()) {
      plan.styles.emplace_back(key, read_style(value, source + "[\"" + key + "\"]"));
    }
    return plan;
  }
  check_keys(json, {"parameter", "forward"}, source);
  for (const char* part : {"parameter", "forward"}) {
    if (!json.contains(part)) continue;
    const Json& entries = json[part];
    if (entries.is_array() && entries.empty()) continue;
    if (!entries.is_object()) wrong_type(source + "." + part, "a table from names to placements", entries);
    for (const auto& [key, value] : entries.items()) {
      if (part == std::string("forward")) {
        read_forward(key, value, plan, source);
      } else {
        const std::string where = source + ".parameter[\"" + key + "\"]";
        ArgumentPlan entry = read_entry(value, {"placements", "grad", "async"}, where);
        TORCH_CHECK_VALUE(!entry.async, where, ": async is for the inputs and outputs of modules");
        if (entry.required) plan.parameters.emplace_back(key, std::move(*entry.required));
        if (entry.gradient) plan.gradients.emplace_back(key, std::move(*entry.gradient));
      }
    }
  }
  return plan;
}

// Writing

Json json_of(const Placements& placements) {
  Json list = Json::array();
  for (const Placement& placement : placements) list.push_back(placement.to_string());
  return list;
}

Json json_of(const ParallelStyle::Layouts& layouts) {
  Json list = Json::array();
  for (const auto& layout : layouts) list.push_back(layout ? Json(layout->to_string()) : Json());
  return list;
}

Json json_of(const SignaturePlan& plan) {
  const auto one = [](const ArgumentPlan& argument) {
    const Json required = argument.required ? json_of(*argument.required) : Json();
    if (argument == ArgumentPlan{.required = argument.required}) return required;
    Json object{{"placements", required}};
    if (argument.plain) object["plain"] = json_of(*argument.plain);
    if (argument.local) object["local"] = true;
    if (argument.gradient) object["grad"] = json_of(*argument.gradient);
    if (argument.async) object["async"] = true;
    return object;
  };
  if (plan.by_name.empty()) {
    Json list = Json::array();
    for (const auto& argument : plan.by_position) list.push_back(argument ? one(*argument) : Json());
    return list;
  }
  Json object = Json::object();
  for (size_t i = 0; i < plan.by_position.size(); ++i) {
    if (plan.by_position[i]) object[std::to_string(i)] = one(*plan.by_position[i]);
  }
  for (const auto& [name, argument] : plan.by_name) object[name] = one(argument);
  return object;
}

Json json_of(const ParallelStyle& style) {
  Json object{{"style", name(style.kind)}};
  if (style.input_layouts) object["input_layouts"] = json_of(*style.input_layouts);
  if (style.desired_input_layouts) object["desired_input_layouts"] = json_of(*style.desired_input_layouts);
  if (style.output_layouts) object["output_layouts"] = json_of(*style.output_layouts);
  if (style.desired_output_layouts) object["desired_output_layouts"] = json_of(*style.desired_output_layouts);
  for (const auto& [key, named] : {std::pair{"input_kwarg_layouts", &style.input_kwarg_layouts},
                                   std::pair{"desired_input_kwarg_layouts", &style.desired_input_kwarg_layouts}}) {
    for (const auto& [name, layout] : *named) object[key][name] = layout ? Json(layout->to_string()) : Json();
  }
  if (style.kind == Kind::kSequence) object["sequence_dim"] = style.sequence_dim;
  if (style.use_local_output) object["use_local_output"] = *style.use_local_output;
  if (style.kind == Kind::kCustom) object["number"] = style.custom;
  return object;
}

}  // namespace

ParallelPlan parse_plan(const std::string& json, const std::string& source) {
  // JSON's readers take one or the other of two equal keys; a file with both means something else.
  std::vector<std::set<std::string>> keys;
  const auto refuse_twice = [&](int /*depth*/, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    TORCH_CHECK_VALUE(event != Json::parse_event_t::key || keys.back().insert(parsed.get<std::string>()).second, source,
                      ": the key '", parsed.get<std::string>(),
                      "' stands twice in one table\n  fix   leave one of them");
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(json, refuse_twice, true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    TORCH_CHECK_VALUE(false, source, ": this is not valid JSON\n  have  ", error.what());
  } catch (const Json::out_of_range& error) {
    TORCH_CHECK_VALUE(false, source, ": a number does not fit 64 bits\n  have  ", error.what());
  }
  return read_plan(parsed, source);
}

ParallelPlan load_plan(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file.good(), "plan.load: cannot open '", path, "': ", std::strerror(errno));
  std::stringstream text;
  text << file.rdbuf();
  TORCH_CHECK_VALUE(!file.bad() && !text.fail(), "plan.load: cannot read '", path, "': it is empty or no file");
  ParallelPlan plan = parse_plan(text.str(), path);
  for (const auto& [pattern, style] : plan.styles) {
    TORCH_CHECK_VALUE(style.kind != Kind::kCustom, path, "[\"", pattern,
                      "\"]: a style written in Lua cannot come from a file\n  fix   use one of PyTorch's styles, or "
                      "place parameters");
  }
  return plan;
}

std::string to_json(const ParallelPlan& plan) {
  Json json = Json::object();
  for (const auto& [pattern, style] : plan.styles) json[pattern] = json_of(style);
  for (const auto& [pattern, placements] : plan.parameters) json["parameter"][pattern] = json_of(placements);
  for (const auto& [pattern, placements] : plan.gradients) {
    Json& entry = json["parameter"][pattern];
    if (entry.is_array()) entry = Json{{"placements", entry}};
    entry["grad"] = json_of(placements);
  }
  const auto side = [](const std::string& pattern, const char* name) {
    const bool regex = pattern.find_first_of("\\%") != std::string::npos;
    return pattern.empty() ? name : pattern + (regex ? "\\." : ".") + name;
  };
  for (const auto& [pattern, arguments] : plan.inputs) json["forward"][side(pattern, "input")] = json_of(arguments);
  for (const auto& [pattern, arguments] : plan.outputs) json["forward"][side(pattern, "output")] = json_of(arguments);
  return json.dump(2);
}

}  // namespace moonhalo
