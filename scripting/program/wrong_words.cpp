// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/wrong_words.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "moonhalo/engine/base/text.h"

namespace moonhalo::scripting {

namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

bool is_option(const std::string& word) {
  return word.size() > 1 && word.front() == '-' && (word[1] < '0' || word[1] > '9');
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string message(const std::string& what, const std::string& have, const std::string& fix) {
  return what + "\n  have  " + have + "\n  fix   " + fix;
}

/// An option in front of the subcommand: the program itself has few.
std::string early_option(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (contains(option_names(app), name)) return "";
  const std::vector<std::string> late = option_names(*app.get_subcommand("run"));
  const std::string fix = "give the subcommand first: moonhalo run SCRIPT --ranks 2; moonhalo --help lists subcommands";
  if (contains(late, name)) return message("option '" + name + "' has no subcommand before it", word, fix);
  std::vector<std::string> all = option_names(app);
  all.insert(all.end(), late.begin(), late.end());
  return message("no option '" + name + "'" + did_you_mean(name, all), word, fix);
}

std::string unknown_option(const CLI::App& command, const std::vector<std::string>& words) {
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    if (!is_option(words[i])) continue;
    const size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const CLI::Option* option = command.get_option_no_throw(name);
    if (!option) {
      return message(command.get_name() + ": no option '" + name + "'" + did_you_mean(name, option_names(command)),
                     words[i], "moonhalo " + command.get_name() + " --help lists the options");
    }
    if (equals == std::string::npos && option->get_items_expected_min() > 0) ++i;  // its value may look like an option
  }
  return "";
}

}  // namespace

bool is_subcommand(const CLI::App& app, const std::string& word) { return contains(subcommand_names(app), word); }

std::string wrong_word(const CLI::App& app, const std::vector<std::string>& words) {
  const std::string list = "moonhalo --help lists the subcommands";
  if (words.empty()) return message("no subcommand", "moonhalo", "moonhalo run SCRIPT runs a script; " + list);
  if (is_option(words.front())) return early_option(app, words.front());
  const std::vector<std::string> commands = subcommand_names(app);
  if (is_subcommand(app, words.front())) return unknown_option(*app.get_subcommand(words.front()), words);
  return message("'" + words.front() + "' is neither a subcommand nor a file" + did_you_mean(words.front(), commands),
                 words.front(), list + "; moonhalo SCRIPT is moonhalo run SCRIPT");
}

}  // namespace moonhalo::scripting
