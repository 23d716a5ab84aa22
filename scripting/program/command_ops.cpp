// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/ops/support/interceptions.h"
#include "moonhalo/scripting/operators/describe_operator.h"
#include "moonhalo/scripting/operators/operators.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

int list_rules() {
  size_t width = 0;
  for (const auto& [op, rule] : all_rules()) width = std::max(width, op.size());
  for (const auto& [op, rule] : all_rules()) {
    std::printf("%-*s  %-34s %-24s %s\n", static_cast<int>(width), op.c_str(), file_of_rule(*rule).c_str(),
                to_string(rule->traffic).c_str(), std::string(rule->supports).c_str());
  }
  std::printf("%zu operators; operators without one are gathered, or refused (mh.set_fallback)\n", all_rules().size());
  return kDone;
}

/// Overloads of one operator, with the rule that serves each.
int show_operator(const std::string& name) {
  const std::string text = describe_operator(name.starts_with("aten::") ? name.substr(6) : name);
  if (text.empty()) throw UsageError("ops: no operator '" + name + "'" + did_you_mean(name, operator_names()));
  std::fputs(text.c_str(), stdout);
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
