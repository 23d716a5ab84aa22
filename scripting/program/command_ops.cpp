// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/operator_traits.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/ops/support/interceptions.h"
#include "moonhalo/scripting/operators/operators.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

std::string file_of(const Rule& rule) {
  const std::string path = rule.file;  // ops/FOLDER/FILE.cpp from here on
  const size_t at = path.rfind("/ops/");
  return at == std::string::npos ? path : path.substr(at + 1);
}

int list_rules() {
  size_t width = 0;
  for (const auto& [op, rule] : all_rules()) width = std::max(width, op.size());
  for (const auto& [op, rule] : all_rules()) {
    std::printf("%-*s  %-34s %-24s %s\n", static_cast<int>(width), op.c_str(), file_of(*rule).c_str(),
                to_string(rule->traffic).c_str(), std::string(rule->supports).c_str());
  }
  std::printf("%zu operators; operators without one are gathered, or refused (mh.set_fallback)\n", all_rules().size());
  return kDone;
}

/// The operators that the best known composites of LibTorch call: the dispatcher does not list them.
const std::vector<std::string>& parts_of(const c10::OperatorHandle& op) {
  using Parts = std::vector<std::string>;
  const Parts any = {"aten::_fft_c2c", "aten::_fft_r2c"}, from_real = {"aten::_fft_r2c"}, to_real = {"aten::_fft_c2r"};
  const Parts to_real_dims = {"aten::_fft_c2c", "aten::_fft_c2r"};
  static const std::map<std::string_view, Parts> parts = {
      {"aten::conv1d", {"aten::convolution"}},
      {"aten::conv2d", {"aten::convolution"}},
      {"aten::conv3d", {"aten::convolution"}},
      {"aten::conv_transpose1d", {"aten::convolution"}},
      {"aten::conv_transpose2d", {"aten::convolution"}},
      {"aten::conv_transpose3d", {"aten::convolution"}},
      {"aten::chunk", {"aten::split"}},
      {"aten::einsum", {"aten::bmm"}},
      {"aten::fft_fft", any},
      {"aten::fft_ifft", any},
      {"aten::fft_fft2", any},
      {"aten::fft_ifft2", any},
      {"aten::fft_fftn", any},
      {"aten::fft_ifftn", any},
      {"aten::fft_rfft", from_real},
      {"aten::fft_rfft2", from_real},
      {"aten::fft_rfftn", from_real},
      {"aten::fft_irfft", to_real},
      {"aten::fft_irfft2", to_real_dims},
      {"aten::fft_irfftn", to_real_dims},
  };
  static const Parts none;
  const auto found = parts.find(op.operator_name().name);
  return found == parts.end() ? none : found->second;
}

/// "made of other operators: ...", and what each of these sends.
void show_parts(const c10::OperatorHandle& op) {
  const std::vector<std::string>& parts = parts_of(op);
  std::string names = parts.empty() ? " (mh.op_trace lists them)" : "";
  for (const std::string& part : parts) names += (names.empty() ? ": " : ", ") + part;
  std::printf("    shards: made of other operators%s\n", names.c_str());
  for (const std::string& part : parts) {
    if (const Rule* rule = find_rule({part, ""}))
      std::printf("    moves:  %s in %s, once its tensors are cut as it needs\n", to_string(rule->traffic).c_str(),
                  part.c_str());
  }
}

/// True if this project makes the operator of others, by a kernel for ShardTensors.
bool made_of_others(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(kShardKey) && !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

/// Overloads of one operator, with the rule that serves each.
int show_operator(const std::string& name) {
  const OperatorSet* set = find_operator(name.starts_with("aten::") ? name.substr(6) : name);
  if (!set) throw UsageError("ops: no operator '" + name + "'" + did_you_mean(name, operator_names()));
  for (const c10::OperatorHandle& op : set->overloads) {
    std::ostringstream schema;
    schema << op.schema();
    std::printf("%s\n", schema.str().c_str());
    const OperatorFacts facts(op);
    const Rule* rule = facts.rule;
    if (!rule && facts.pointwise && !facts.functional) rule = find_rule({"moonhalo::pointwise", ""});
    if (facts.functional) {
      std::printf("    shards: calls %s and writes its results\n",
                  c10::toString(facts.functional->operator_name()).c_str());
    } else if (rule) {
      std::printf("    shards: %s (%s)\n", std::string(rule->supports).c_str(), file_of(*rule).c_str());
      std::printf("    moves:  %s, once its tensors are cut as it needs\n", to_string(rule->traffic).c_str());
      std::printf("    source: %s\n", std::string(rule->source).c_str());
    } else if (facts.composite_implicit || facts.decomposes || made_of_others(op)) {
      show_parts(op);
    } else {
      std::printf("    shards: %s\n", facts.random ? "refused: no rule for this random operator"
                                                   : "no rule: gathered, or refused (mh.set_fallback)");
    }
  }
  return kDone;
}

int show_all_operators() {
  for (const std::string& name : operator_names()) show_operator(name);
  return kDone;
}

/// Lists everything of LibTorch that may come to Moonhalo's code.
int list_interceptions() {
  for (const Interception& row : interceptions()) {
    const std::string names = row.operators == "*" ? "every operator" : std::string(row.operators);
    std::printf("%s\n    met:  %s\n    why:  %s\n    keys: %s\n", names.c_str(), std::string(row.when).c_str(),
                std::string(row.why).c_str(), std::string(row.keys).c_str());
  }
  return kDone;
}

}  // namespace

void add_ops_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("ops", "Operators with a rule for shards, or everything about one");
  const auto name = std::make_shared<std::string>();
  const auto intercepted = std::make_shared<bool>(false);
  const auto all = std::make_shared<bool>(false);
  CLI::Option* option = command->add_option("name", *name, "An operator, such as conv2d");
  command->add_flag("--intercepted", *intercepted, "What of LibTorch comes to code of Moonhalo, and when")
      ->excludes(option);
  command->add_flag("--all", *all, "Everything about every operator")->excludes(option);
  command->callback([name, intercepted, all, &action] {
    action = [name, intercepted, all] {
      if (*intercepted) return list_interceptions();
      if (*all) return show_all_operators();
      return name->empty() ? list_rules() : show_operator(*name);
    };
  });
}

}  // namespace moonhalo::scripting
