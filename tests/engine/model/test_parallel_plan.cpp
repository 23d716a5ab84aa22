// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/model/name_pattern.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "tests/support/folder.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_parallel_plan {
namespace {

using ::testing::HasSubstr;

// A model of two blocks and a head, as facts.
std::vector<ModuleFacts> model() {
  std::vector<ModuleFacts> modules = {{"", {"Net", "Module"}, {{"scale", {4}}}}};
  for (const char* block : {"blocks.0", "blocks.1"}) {
    const std::string name = block;
    modules.push_back({name, {"Block", "Module"}, {}});
    modules.push_back({name + ".fc1", {"Linear", "Module"}, {{"weight", {7, 4}}, {"bias", {7}}}});
    modules.push_back({name + ".fc2", {"MyLinear", "Linear", "Module"}, {{"weight", {4, 7}}, {"bias", {4}}}});
  }
  modules.push_back({"words", {"Embedding", "Module"}, {{"weight", {9, 4}}}});
  return modules;
}

MeshPtr fake_mesh(std::vector<int64_t> shape) {
  const auto world = make_fake_communicator(
      0, static_cast<int>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
  return init_device_mesh(*world, "cpu", std::move(shape));
}

// Lists what is not replicated, and what is moved: "blocks.0.fc1.weight Shard(0)".
std::string text_of(const Placements& placements) {
  std::string text;
  for (const Placement& placement : placements) text += (text.empty() ? "" : " ") + placement.to_string();
  return text;
}
std::string text_of(const SignaturePlan& plan) {
  std::string text;
  for (const auto& one : plan.by_position) {
    text += " [";
    if (one && one->plain) text += text_of(*one->plain) + " as ";
    text += one ? (one->required ? text_of(*one->required) : "is") + (one->local ? ", local]" : "]") : "]";
  }
  while (text.ends_with(" []")) text.resize(text.size() - 3);  // no list need end with what is left alone
  for (const auto& [name, one] : plan.by_name) text += " " + name + " [" + text_of(*one.required) + "]";
  return text;
}
std::string outcome(const std::string& json, std::vector<int64_t> mesh = {3}) {
  const auto modules = model();
  const auto resolved = resolve(parse_plan(json), modules, *fake_mesh(std::move(mesh)));
  std::string text;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string prefix = modules[i].name.empty() ? "" : modules[i].name + ".";
    for (const auto& [name, tensor] : resolved[i].tensors) {
      const bool copied = std::all_of(tensor.placements.begin(), tensor.placements.end(),
                                      [](const Placement& placement) { return placement.is_replicate(); });
      if (!copied) text += prefix + name + " " + text_of(tensor.placements) + "\n";
    }
    if (!resolved[i].inputs.empty()) text += prefix + "input" + text_of(resolved[i].inputs) + "\n";
    if (!resolved[i].outputs.empty()) text += prefix + "output" + text_of(resolved[i].outputs) + "\n";
  }
  return text;
}

struct PlanCase {
  const char* name;
  const char* json;
  const char* expected;
  std::vector<int64_t> mesh = {3};
};

const PlanCase kPlans[] = {
    {"Empty", "{}", ""},
    {"V05Exact", R"json({"parameter": {"blocks.0.fc1.weight": ["S(0)"], "scale": "S(-1)"}})json",
     "scale Shard(-1)\nblocks.0.fc1.weight Shard(0)\n"},
    {"V22Star", R"json({"parameter": {"blocks.*.fc1.b*": "S(0)"}})json",
     "blocks.0.fc1.bias Shard(0)\nblocks.1.fc1.bias Shard(0)\n"},
    {"V22Regex",
     R"json({"parameter": {"blocks\\.\\d+\\.fc[12]\\.bias": "R", "blocks%.[1-9]%.fc1%.weight": "S(1)"}})json",
     "blocks.1.fc1.weight Shard(1)\n"},
    {"TheExactNameWins", R"json({"parameter": {"blocks.*.fc1.bias": "S(0)", "blocks.1.fc1.bias": "R"}})json",
     "blocks.0.fc1.bias Shard(0)\n"},
    {"TheCloserPatternWins", R"json({"parameter": {"*.*.fc1.bias": "S(0)", "*.1.fc1.bias": "R"}})json",
     "blocks.0.fc1.bias Shard(0)\n"},
    {"AnExactNameEndsATie",
     R"json({"parameter": {"blocks.?.fc1.bias": "S(0)", "blocks.*.fc1.bias": "R", "blocks.0.fc1.bias": "S(0)",
                           "blocks.1.fc1.bias": "R"}})json",
     "blocks.0.fc1.bias Shard(0)\n"},
    {"Sizes", R"json({"parameter": {"blocks.0.fc1.weight": ["S(0, {4, 0, 3})"]}})json",
     "blocks.0.fc1.weight Shard(0, {4, 0, 3})\n"},
    {"V06Forward",
     R"json({"forward": {"blocks.0.input": [null, ["S(1)"]], "blocks.*.output": ["R"], "input": ["P"]}})json",
     "input [Partial(sum)]\nblocks.0.input [] [Shard(1)]\nblocks.0.output [Replicate()]\nblocks.1.output "
     "[Replicate()]\n"},
    {"V23ByName", R"json({"forward": {"words.input": {"0": "R", "mask": ["S(1)"]}}})json",
     "words.input [Replicate()] mask [Shard(1)]\n"},
    {"V17TwoMeshDims",
     R"json({"parameter": {"blocks.0.fc1.weight": ["S(0)", "S(1)"]}, "forward": {"words.output": [["R", "S(0)"]]}})json",
     "blocks.0.fc1.weight Shard(0) Shard(1)\nwords.output [Replicate() Shard(0)]\n",
     {2, 2}},
    {"P05Colwise", R"json({"blocks.0.fc1": "ColwiseParallel"})json",
     "blocks.0.fc1.bias Shard(0)\nblocks.0.fc1.weight Shard(0)\n"
     "blocks.0.fc1.input [Replicate() as Replicate()]\nblocks.0.fc1.output [Shard(-1) as Shard(-1), local]\n"},
    {"P06RowwiseOfASubclass",
     R"json({"blocks.1.fc2": {"style": "RowwiseParallel", "output_layouts": "S(1)", "use_local_output": false}})json",
     "blocks.1.fc2.weight Shard(1)\n"
     "blocks.1.fc2.input [Shard(-1, {3, 2, 2}) as Shard(-1, {3, 2, 2})]\nblocks.1.fc2.output [Shard(1) as Shard(1)]\n"},
    {"P05ColwiseEmbedding", R"json({"words": "ColwiseParallel"})json",
     "words.weight Shard(1)\nwords.input [Replicate() as Replicate()]\nwords.output [Shard(-1) as Shard(-1), local]\n"},
    {"P06RowwiseEmbedding", R"json({"words": {"style": "RowwiseParallel", "input_layouts": "R"}})json",
     "words.weight Shard(0)\nwords.input [Replicate() as Replicate()]\nwords.output [Replicate() as Replicate(), "
     "local]\n"},
    {"PairwiseOfOneModule", R"json({"blocks.0": "PairwiseParallel"})json",
     "blocks.0.fc1.bias Shard(0)\nblocks.0.fc1.weight Shard(0)\n"
     "blocks.0.fc1.input [Replicate() as Replicate()]\nblocks.0.fc1.output [Shard(-1) as Shard(-1)]\n"
     "blocks.0.fc2.weight Shard(1)\n"
     "blocks.0.fc2.input [Shard(-1, {3, 2, 2}) as Shard(-1, {3, 2, 2})]\n"
     "blocks.0.fc2.output [Replicate() as Replicate(), local]\n"},
    {"PairwiseOfAllInside",
     R"json({"": {"style": "PairwiseParallel", "input_layouts": "S(0)", "use_local_output": false},
             "blocks.1": {"style": "PairwiseParallel", "output_layouts": "S(1)"}})json",
     "blocks.0.fc1.bias Shard(0)\nblocks.0.fc1.weight Shard(0)\n"
     "blocks.0.fc1.input [Shard(0) as Replicate()]\nblocks.0.fc1.output [Shard(-1) as Shard(-1)]\n"
     "blocks.0.fc2.weight Shard(1)\n"
     "blocks.0.fc2.input [Shard(-1, {3, 2, 2}) as Shard(-1, {3, 2, 2})]\n"
     "blocks.0.fc2.output [Replicate() as Replicate()]\n"
     "blocks.1.fc1.bias Shard(0)\nblocks.1.fc1.weight Shard(0)\n"
     "blocks.1.fc1.input [Replicate() as Replicate()]\nblocks.1.fc1.output [Shard(-1) as Shard(-1)]\n"
     "blocks.1.fc2.weight Shard(1)\n"
     "blocks.1.fc2.input [Shard(-1, {3, 2, 2}) as Shard(-1, {3, 2, 2})]\n"
     "blocks.1.fc2.output [Shard(1) as Shard(1), local]\n"},
    {"SequenceParallel", R"json({"blocks.*": {"style": "SequenceParallel", "sequence_dim": 2}})json",
     "blocks.0.input [Shard(2) as Shard(2)]\nblocks.0.output [Shard(2) as is]\n"
     "blocks.1.input [Shard(2) as Shard(2)]\nblocks.1.output [Shard(2) as is]\n"},
    {"P01OneStyleIsForTheRoot",
     R"json({"style": "PrepareModuleInput", "input_layouts": ["S(0)", null], "desired_input_layouts": ["R", null], "use_local_output": true})json",
     "input [Shard(0) as Replicate(), local]\n"},
    {"PrepareOutput",
     R"json({"words": {"style": "PrepareModuleOutput", "output_layouts": "S(0)", "desired_output_layouts": "R"}})json",
     "words.output [Shard(0) as Replicate(), local]\n"},
    {"Keywords", R"json({"words": {"style": "PrepareModuleInput", "input_kwarg_layouts": {"mask": "S(0)", "k": null},
                   "desired_input_kwarg_layouts": {"mask": "R", "k": null}}})json",
     "words.input mask [Replicate()]\n"},
};

class ParallelPlans : public ::testing::TestWithParam<PlanCase> {};

TEST_P(ParallelPlans, SayWhereTensorsGo) { EXPECT_EQ(outcome(GetParam().json, GetParam().mesh), GetParam().expected); }

TEST_P(ParallelPlans, V16MeanTheSameSpeltOut) {
  const auto modules = model();
  const auto resolved = resolve(parse_plan(GetParam().json), modules, *fake_mesh(GetParam().mesh));

  const ParallelPlan plan = spelt_out(resolved, modules);

  EXPECT_TRUE(plan.styles.empty());
  EXPECT_EQ(outcome(to_json(plan), GetParam().mesh), GetParam().expected);
}
TEST_P(ParallelPlans, AreTheSameWrittenAndReadAgain) {
  EXPECT_EQ(outcome(to_json(parse_plan(GetParam().json)), GetParam().mesh), GetParam().expected);
}

const auto name_of = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Cases, ParallelPlans, ::testing::ValuesIn(kPlans), name_of);

struct RefusedCase {
  const char* name;
  const char* json;
  const char* message;
  std::vector<int64_t> mesh = {3};
};

const RefusedCase kRefused[] = {
    {"NoJson", "{", "plan: this is not valid JSON"},
    {"P13Number", "3",
     "Expect ParallelStyle or table {name = ParallelStyle} or {parameter = ..., forward = ...}, found number"},
    {"NumberForAName", R"json({"words": 3})json", "plan[\"words\"]: Expect ParallelStyle, found number"},
    {"V09UnknownKey", R"json({"paramter": {}})json", "unknown key 'paramter'; did you mean 'parameter'?"},
    {"UnknownStyle", R"json({"words": "RowiseParallel"})json",
     "or 'PairwiseParallel'?\n  have  styles ColwiseParallel, RowwiseParallel, PairwiseParallel, SequenceParallel"},
    {"PlacementForAStyle", R"json({"words": "Shard(0)"})json",
     "fix   a placement is of a parameter: {\"parameter\": {\"fc1.weight\": [\"Shard(0)\"]}}"},
    {"UnknownOption", R"json({"words": {"style": "RowwiseParallel", "output_layout": "R"}})json",
     "did you mean 'output_layouts' or 'input_layouts'?\n  have  known keys style, input_layouts, output_layouts"},
    {"NoPlacement", R"json({"parameter": {"scale": "Shrad(0)"}})json",
     "plan.parameter[\"scale\"]: 'Shrad(0)' is not a placement"},
    {"NoReduction", R"json({"forward": {"words.input": ["P(mean)"]}})json", "mean"},
    {"Side", R"json({"forward": {"words.ouput": ["R"]}})json",
     "neither in .input nor in .output; did you mean 'output'?"},
    {"Unmatched", R"json({"parameter": {"blocks.0.fc1.wight": "R"}})json",
     "'blocks.0.fc1.wight' matches no parameter; did you mean 'blocks.0.fc1.weight'"},
    {"UnmatchedPattern", R"json({"parameter": {"blocks.*.fc3.weight": "R"}})json",
     "'blocks.*.fc3.weight' matches no parameter"},
    {"RegexOfAnotherName", R"json({"parameter": {"blocks\\.0\\.fc[^1-9]\\.weight": "R"}})json", "matches no parameter"},
    {"BadRange", R"json({"parameter": {"fc[9-1]\\d": "R"}})json",
     "'fc[9-1]\\d' is not a valid pattern: invalid character class range: '9-1'"},
    {"ReferenceBack", R"json({"parameter": {"(a)\\1": "R"}})json",
     "is not a valid pattern: \\1 is not known at character 4"},
    {"LookingAhead", R"json({"parameter": {"(?=a)\\d": "R"}})json",
     "'(?=a)\\d' is not a valid pattern: invalid perl operator: '(?='"},
    {"TooManyRepeats", R"json({"parameter": {"((\\d{100}){100}){100}": "R"}})json",
     "'((\\d{100}){100}){100}' is not a valid pattern: invalid repetition size: '{100}'"},
    {"EmptySize", R"json({"parameter": {"scale": "S(0, {4, })"}})json",
     "plan.parameter[\"scale\"]: 'S(0, {4, })' is not a placement: a block size is required at character 10"},
    {"LargeSize", R"json({"parameter": {"scale": "S(0, {9223372036854775808})"}})json",
     "a block size has at most 15 digits at character 22"},
    {"MoreText", R"json({"parameter": {"scale": "S(0) S(1)"}})json", "nothing more is required at character 6"},
    {"KeyTwice", R"json({"parameter": {"scale": "R", "scale": "S(0)"}})json",
     "plan: the key 'scale' stands twice in one table"},
    {"LargeInteger", R"json({"words": {"style": "SequenceParallel", "sequence_dim": 18446744073709551615}})json",
     "plan[\"words\"].sequence_dim: 18446744073709551615 is not an integer of 64 bits"},
    {"LargeNumber", R"json({"words": {"style": "SequenceParallel", "sequence_dim": 1e999}})json",
     "plan: a number does not fit 64 bits"},
    {"StarIsOnePart", R"json({"parameter": {"blocks.*.weight": "R"}})json", "matches no parameter"},
    {"Ambiguous", R"json({"parameter": {"blocks.?.fc1.bias": "R", "blocks.*.fc1.bias": "S(0)"}})json",
     "both match parameter"},
    {"BadPattern", R"json({"parameter": {"blocks\\.(": "R"}})json", "is not a valid pattern"},
    {"Dim", R"json({"parameter": {"scale": "S(1)"}})json", "'scale' cannot be Shard(1), its shape is [4]"},
    {"PartialParameter", R"json({"parameter": {"scale": "P"}})json", "'scale' cannot be Partial(sum)"},
    {"OnePlacementPerMeshDim",
     R"json({"forward": {"words.input": ["R"]}})json",
     "the input of 'words', a Embedding, has 1 placements",
     {2, 2}},
    {"P10StylesWantOneMeshDim",
     R"json({"words": "ColwiseParallel"})json",
     "parallel styles are for a mesh of one dimension",
     {2, 2}},
    {"P14WholeBlock", R"json({"blocks.0": "ColwiseParallel"})json",
     "fix   name what is inside it ('blocks.0.fc1', 'blocks.0.fc2')"},
    {"PairwiseWithoutAPair", R"json({"words": "PairwiseParallel"})json",
     "PairwiseParallel finds no two linear layers that belong together in 'words', a Embedding\n  have  no linear "
     "layer"},
    {"PairwiseOfOneLayer", R"json({"blocks.0.fc1": "PairwiseParallel"})json",
     "in 'blocks.0.fc1', a Linear\n  have  'blocks.0.fc1'\n  fix   name the module whose own layers are a pair"},
    {"PairwiseAndAnotherStyle", R"json({"blocks.0": "PairwiseParallel", "blocks.0.fc2": "ColwiseParallel"})json",
     "'blocks.0.fc2' has the style ColwiseParallel, and PairwiseParallel of 'blocks.0', a Block, gives it "
     "RowwiseParallel"},
    {"PairwiseWantsOneMeshDim",
     R"json({"blocks.0": "PairwiseParallel"})json",
     "parallel styles are for a mesh of one dimension",
     {2, 2}},
    {"TwoLayoutsForALinear", R"json({"words": {"style": "ColwiseParallel", "input_layouts": ["R", "R"]}})json",
     "takes one layout"},
    {"PrepareNeedsBoth", R"json({"words": {"style": "PrepareModuleInput", "input_layouts": "R"}})json",
     "needs both input_layouts and"},
    {"PrepareLengths",
     R"json({"words": {"style": "PrepareModuleOutput", "output_layouts": ["R", "R"], "desired_output_layouts": "R"}})json",
     "has 2 output_layouts and 1 desired_output_layouts"},
};

class RefusedPlans : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedPlans, SayWhatIsWrong) {
  EXPECT_THAT(message_of([] { outcome(GetParam().json, GetParam().mesh); }), HasSubstr(GetParam().message));
}
INSTANTIATE_TEST_SUITE_P(Cases, RefusedPlans, ::testing::ValuesIn(kRefused), name_of);

TEST(ParallelPlan, UnmatchedNamesMayBeAWarning) {  // V22
  struct Heard : c10::WarningHandler {
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  } heard;
  const c10::WarningUtils::WarningHandlerGuard guard(&heard);

  resolve(parse_plan(R"json({"parameter": {"scael": "R"}})json"), model(), *fake_mesh({3}), Unmatched::kWarn);

  EXPECT_THAT(heard.text, HasSubstr("'scael' matches no parameter; did you mean 'scale'?"));
}

// B8: 100,000 ranks; std::regex needs a stack frame per character.
TEST(ParallelPlan, ListsOfBlockSizesMayBeLong) {
  std::string sizes = "7";
  for (int i = 1; i < 100000; ++i) sizes += ", 128";

  const ParallelPlan plan = parse_plan(R"json({"parameter": {"scale": "S(0, {)json" + sizes + R"json(})"}})json");

  EXPECT_EQ(plan.parameters[0].second[0].sizes.size(), 100000U);
  EXPECT_EQ(plan.parameters[0].second[0].sizes[0], 7);
  EXPECT_THAT(message_of([&] { parse_placement("S(0, {" + sizes + " 5})"); }),
              HasSubstr("28, 128, 128 5})' is not a placement: a , or } is required at character 500004"));
}

// B9: hours for anything that backtracks.
TEST(ParallelPlan, PatternsTakeLinearTime) {
  std::string stars, name(3000, 'a');
  for (int i = 0; i < 500; ++i) stars += "a*";

  EXPECT_FALSE(glob_fits(stars + "b", name));
  EXPECT_TRUE(glob_fits(stars, name));
  EXPECT_FALSE(NameRegex("(a*)*\\d").fits(name));
  EXPECT_FALSE(NameRegex("(a|aa|a?)+%d").fits(name));
  EXPECT_TRUE(NameRegex("(x+x+)*(a+a+)+").fits(name));
}

TEST(ParallelPlan, RegularExpressionsFitWholeNames) {
  const std::tuple<const char*, const char*, bool> cases[] = {
      {"a\\.b", "a.b", true},           {"a\\.b", "axb", false},        {"a\\.b", "a.bc", false},
      {"%a+%.%d", "ab.3", true},        {"(ab|c|)\\d", "ab1", true},    {"(ab|c|)\\d", "1", true},
      {"(ab|c|)\\d", "abc1", false},    {"x{2,3}\\w", "xxx", true},     {"x{2,3}\\w", "xxxxx", false},
      {"x{2,}\\d", "xxxxx1", true},     {"x{2}\\d", "xx1", true},       {"x{2}\\d", "x1", false},
      {"[^.]+\\.w?", "blocks.", true},  {"[^.]+\\.w?", "a.b.w", false}, {"[a-c_%d]*", "ab_9", true},
      {"[a-c-]\\w?", "-", true},        {"^a\\d$", "a1", true},         {"a^\\d", "a1", false},
      {".*\\.bias", "0.fc.bias", true}, {"(?:ab)+?\\W", "abab.", true}, {"(a|b(c|d)*)+\\S", "abcdcbx", true},
      {"%l%u%s%D", "aB .", true},       {"()*%d", "7", true},           {"(){1000}\\d", "7", true},
      {"[%a_]+%.%l", "aZ_.b", true},    {"[]%d]+", "]9", true},         {"[[:alpha:]%d]+", "ab9", true},
      {"[[:%d]+", "[9:", true},         {"[^%u]\\d", "A1", false},      {"\xe9%.[^%a]", "\xe9.\xe9", true},
      {"%\xe9.", "\xe9\n", true},       {"%_%u", "_a", false},          {"(?i)a\\.b", "A.B", true},
      {"[%-%a]+", "-z", true},          {"[-%a]+", "-z", true},         {"[%d-%l]+", "3-z", true},
      {"[a-c-%l]+", "b-z", true},       {"[+%-.]%d", ",1", false},      {"[+--]%d", ",1", true},
  };
  for (const auto& [pattern, name, fits] : cases)
    EXPECT_EQ(NameRegex(pattern).fits(name), fits) << pattern << " " << name;
  for (const char* wrong : {"\\", "%", "a)\\d", "(\\d", "[\\d", "*\\d", "a**\\d", "a{3,1}\\d", "a{9999}\\d", "(?=a)\\d",
                            "[[:no:]%d]", "[A-%l]", "[%A-%d]", "[!-[:alpha:]%d]", "\\b", "%b", "\\Qa", "\\1"}) {
    EXPECT_THAT(message_of([&] { NameRegex regex(wrong); }), HasSubstr("is not a valid pattern: ")) << wrong;
  }
}

// Plans may be damaged, or made to do damage: neither a deep nor a large expression takes much stack, memory or time.
TEST(ParallelPlan, RegularExpressionsAreNotTooLarge) {
  const std::string deep = std::string(1900, '(') + "a" + std::string(1900, ')') + "%d";
  std::string large;
  for (int i = 0; i < 500; ++i) large += "a{1000}";

  EXPECT_TRUE(NameRegex(deep).fits("a1"));
  EXPECT_THAT(message_of([&] { NameRegex regex(large); }), HasSubstr("...' is not a valid pattern: pattern too large"));
  EXPECT_THAT(message_of([&] { NameRegex regex(large + large); }), HasSubstr("it has more than 4000 characters"));
}

TEST(ParallelPlan, FilesAreRefusedByName) {
  const Folder folder;
  const std::string path = folder / "plan.json";
  const auto refused = [&](const std::string& text) {
    std::ofstream(path) << text;
    return message_of([&] { load_plan(path); });
  };

  EXPECT_THAT(refused(std::string(1000000, '[')), HasSubstr(path + ": this is not valid JSON"));
  EXPECT_THAT(refused(std::string(1000000, '[') + std::string(1000000, ']')),
              HasSubstr(path + ": Expect ParallelStyle or table"));
  EXPECT_THAT(refused(R"({"a": {"style": "custom", "number": 1}})"),
              HasSubstr(path + "[\"a\"]: a style written in Lua cannot come from a file"));
  EXPECT_THAT(refused(R"({"a": {"style": "custom", "number": "x"}})"),
              HasSubstr(path + "[\"a\"].number: Expect an integer, found string"));
  EXPECT_THAT(refused(""), HasSubstr("cannot read '" + path));
  EXPECT_THAT(message_of([] { load_plan("/nowhere/a.json"); }),
              HasSubstr("cannot open '/nowhere/a.json': No such file or directory"));
}

}  // namespace
}  // namespace moonhalo::testing::test_parallel_plan
