// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "io/domain_file.h"
#include "scripting/commands.h"
#include "scripting/session.h"

namespace moonhalo::scripting {

namespace {

std::string list_text(const std::vector<int64_t>& values) {
  std::ostringstream text;
  text << "[";
  for (size_t i = 0; i < values.size(); ++i) text << (i > 0 ? ", " : "") << values[i];
  text << "]";
  return text.str();
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts)
    all += (all.empty() ? "" : ", ") + (text.empty() ? std::string("-") : text);
  return all;
}

int inspect(const std::string& path) {
  const io::File file = io::open(path);
  std::printf("%s\n", path.c_str());
  for (const auto& [name, value] : file.attrs())
    std::printf("  @%s = %s\n", name.c_str(), io::to_string(value).c_str());
  for (const std::string& name : file.datasets()) {
    const io::Dataset data = file[name];
    std::printf("%s  %s %s", name.c_str(), data.type_name().c_str(),
                list_text(data.shape()).c_str());
    const std::vector<std::string> dims = data.dims();
    if (std::any_of(dims.begin(), dims.end(),
                    [](const std::string& dim) { return !dim.empty(); })) {
      std::printf("  dims (%s)", joined(dims).c_str());
    }
    if (!data.chunks().empty()) std::printf("  chunks %s", list_text(data.chunks()).c_str());
    if (!data.filters().empty()) std::printf("  filters (%s)", joined(data.filters()).c_str());
    std::printf("\n");
    for (const auto& [key, value] : data.attrs())
      std::printf("  @%s = %s\n", key.c_str(), io::to_string(value).c_str());
  }
  return kDone;
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Datasets, shapes, chunks and units of an HDF5 or NetCDF-4 file");
  const auto path = std::make_shared<std::string>();
  command->add_option("file", *path, "The file")->required()->check(CLI::ExistingFile);
  command->callback([path, &action] { action = [path] { return inspect(*path); }; });
}

}  // namespace moonhalo::scripting
