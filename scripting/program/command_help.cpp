// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "moonhalo/scripting/operators/help.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

/// A line that names the help of the command, where a command has the name; "" elsewhere.
std::string pointer_to_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == name) return "`moonhalo " + name + " --help` explains the command.\n";
  }
  return "";
}

int print_help(const std::string& name, const std::string& words, const std::string& of_command) {
  std::string text;
  try {
    text = !words.empty() ? help_search(words) : name.empty() ? help_overview() : help_on(name);
  } catch (const c10::ValueError& error) {
    if (of_command.empty()) throw UsageError(error.what_without_backtrace());
  }
  if (!of_command.empty()) text += (text.empty() ? "" : "\n") + of_command;
  if (text.empty()) throw UsageError("help: no entry has all of these words: " + words);
  std::fputs(text.c_str(), stdout);
  return kDone;
}

}  // namespace

void add_help_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("help", "The reference: signatures, arguments, examples");
  const auto name = std::make_shared<std::string>();
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::Option* option = command->add_option("name", *name, "A name, such as mh.nn.Conv2d, redistribute or Tensor");
  command->add_option("--search", *words, "Words that entries have")->excludes(option);
  command->callback([name, words, &app, &action] {
    action = [name, words, of_command = pointer_to_command(app, *name)] {
      std::string all;
      for (const std::string& word : *words) all += word + " ";
      return print_help(*name, all, of_command);
    };
  });
}

}  // namespace moonhalo::scripting
