// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "tests/fuzz/kinds.h"

namespace moonhalo::testing {
namespace {

const std::string kFile = std::string(kInputName) + ".json";

const char* const kPlans[] = {
    R"json({"parameter": {"blocks.*.fc1.weight": ["S(0)"], "blocks\\.\\d+\\.fc[12]\\.bias": "R", "scale": {"placements": ["S(0, {2, 1, 1})"], "grad": ["R"]}},
 "forward": {"blocks.0.input": [["R"], null], "words.output": [null, ["Shard(1)"]], "words.input": {"0": "R", "mask": ["P(max)"]}}})json",
    R"json({"blocks.0.fc1": "ColwiseParallel", "blocks.0.fc2": {"style": "RowwiseParallel", "output_layouts": "S(1)", "use_local_output": false},
 "blocks.1": {"style": "SequenceParallel", "sequence_dim": 2}})json",
    R"json({"style": "PrepareModuleInput", "input_layouts": ["S(0)", null], "desired_input_layouts": ["R", null], "use_local_output": true})json",
    R"json({"words": {"style": "PrepareModuleInput", "input_kwarg_layouts": {"mask": "S(0)", "k": null},
  "desired_input_kwarg_layouts": {"mask": "R", "k": null}}, "%w+%.[01]%.(fc1|fc3)": "ColwiseParallel" /* patterns */})json",
};

std::vector<InputFiles> valid(const std::string&) {
  std::vector<InputFiles> inputs;
  for (const char* plan : kPlans) inputs.push_back({.files = {{kFile, plan}}});
  return inputs;
}

std::vector<ModuleFacts> model() {
  std::vector<ModuleFacts> modules = {{"", {"Net", "Module"}, {{"scale", {4}}}},
                                      {"words", {"Embedding"}, {{"weight", {9, 4}}}}};
  for (const char* block : {"blocks.0", "blocks.1"}) {
    const std::string name = block;
    modules.push_back({name, {"Block"}, {}});
    modules.push_back({name + ".fc1", {"Linear"}, {{"weight", {7, 4}}, {"bias", {7}}}});
    modules.push_back({name + ".fc2", {"Linear"}, {{"weight", {4, 7}}, {"bias", {4}}}});
  }
  return modules;
}

std::string judge(const std::string& folder, const InputFiles&) {
  ParallelPlan plan;
  try {
    plan = load_plan(folder + "/" + kFile);
  } catch (const c10::Error& error) {
    return judge_error(error.what_without_backtrace());
  }
  const std::string written = to_json(plan);
  if (to_json(parse_plan(written)) != written) return "written and read again it is another plan";
  try {
    const auto world = make_fake_communicator(0, 3);
    resolve(plan, model(), *init_device_mesh(*world, "cpu", {3}));
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    return message.starts_with("parallelize_module: ") ? "refused"
                                                       : "an error without its call: " + message.substr(0, 400);
  }
  return "read";
}

}  // namespace

const InputKind& plans_kind() {
  static const InputKind kind{.name = "plans",
                              .valid = valid,
                              .words = {"\"S(0)\"",
                                        "\"R\"",
                                        "\"P\"",
                                        "\"S(-1, {3, 2, 2})\"",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "null",
                                        "true",
                                        "-1",
                                        "1e999",
                                        "18446744073709551616",
                                        "\"*\"",
                                        "*",
                                        "?",
                                        "a*",
                                        "(a*)*",
                                        "(",
                                        ")",
                                        "|",
                                        "\\\\d",
                                        "%d",
                                        "%",
                                        "{9}",
                                        "[^a-",
                                        "\\\\",
                                        "\\u0000",
                                        "\"\"",
                                        "\"style\"",
                                        "\"parameter\"",
                                        "\"forward\"",
                                        "\"async\"",
                                        "\"grad\"",
                                        "\"placements\"",
                                        "\"custom\"",
                                        "\"number\"",
                                        ".input",
                                        ".",
                                        "blocks",
                                        "/*",
                                        "//",
                                        "\"0\"",
                                        "\"999\"",
                                        "9"},
                              .judge = judge,
                              .once = 4000};
  return kind;
}

}  // namespace moonhalo::testing
