// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "moonhalo/io/formats/profile_files.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/one_of.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

void add_profile_command(CLI::App& app, Action& action) {
  struct Wanted {
    std::string folder = "profile", other, by = "module", sort = "self";
    size_t rows = 40;
    bool memory = false;
  };
  CLI::App* command =
      app.add_subcommand("profile", "Where the time of a run went: a table of what run --profile or p:save wrote");
  const auto wanted = std::make_shared<Wanted>();
  command
      ->add_option("folder", wanted->folder, "The folder of the profile, or of a run that has one (default: profile)")
      ->check(CLI::ExistingDirectory);
  command->add_option("--by", wanted->by, "What the rows are about (default: module)")
      ->check(one_of({"operator", "module", "line", "phase", "rank", "communication"}));
  command->add_option("--sort", wanted->sort, "The column to sort by; own is self without blocked (default: self)")
      ->check(one_of({"self", "total", "calls", "name", "own", "blocked", "macs"}));
  command->add_option("--rows", wanted->rows, "The largest number of rows (default: 40)")->check(CLI::PositiveNumber);
  command->add_flag("--memory", wanted->memory, "Memory of tensors at the peak, by module, instead of time");
  command->add_option("--compare", wanted->other, "The folder of a later profile: what has changed since")
      ->check(CLI::ExistingDirectory);
  command->callback([wanted, &action] {
    action = [wanted] {
      const ProfileSummary summary = io::read_profile(wanted->folder);
      const ProfileBy by = parse_profile_by(wanted->by);
      std::string text = profile_table(summary, by, parse_profile_sort(wanted->sort), wanted->rows);
      if (!wanted->other.empty()) text = compare_profiles(summary, io::read_profile(wanted->other), by, wanted->rows);
      if (wanted->memory) text = memory_table(summary, wanted->rows);
      std::fwrite(text.data(), 1, text.size(), stdout);
      return int{kDone};
    };
  });
}

}  // namespace moonhalo::scripting
