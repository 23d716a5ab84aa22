// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/checkpoint_folder.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <filesystem>
#include <set>

#include "moonhalo/io/base/new_file.h"

namespace moonhalo::io {
namespace {

namespace fs = std::filesystem;

const char* const kSuffixes[] = {"", ".partial", ".replaced"};

std::atomic<bool> one_step_is_possible{true};

void remove_all(const std::string& who, const std::string& path) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::not_found) return;
  fs::remove_all(path, error);
  TORCH_CHECK(!error, who, ": cannot remove '", path, "': ", error.message(), disk_remedy(error.value()));
}

}  // namespace

void exchange_checkpoints_in_one_step(bool one_step) { one_step_is_possible = one_step; }

bool is_checkpoint(const std::string& who, const std::string& folder) {
  const std::string file = folder + "/" + kCheckpointFile;
  std::error_code error;
  const bool there = fs::exists(file, error);
  TORCH_CHECK_VALUE(!error, who, ": cannot look at '", file, "': ", error.message(), disk_remedy(error.value()));
  return there;
}

std::optional<std::string> find_checkpoint(const std::string& who, const std::string& path) {
  for (const char* suffix : kSuffixes) {
    if (is_checkpoint(who, path + suffix)) return path + suffix;
  }
  return std::nullopt;
}

std::vector<std::string> list_folders(const std::string& who, const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return {};
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->is_directory()) names.push_back(entries->path().filename().string());
  }
  TORCH_CHECK_VALUE(!error, who, ": cannot look into '", folder, "': ", error.message(), disk_remedy(error.value()));
  return names;
}

std::vector<std::string> list_checkpoints(const std::string& who, const std::string& folder) {
  std::set<std::string> names;
  for (std::string& name : list_folders(who, folder)) {
    if (!is_checkpoint(who, folder + "/" + name)) continue;
    for (const std::string suffix : {".partial", ".replaced"}) {
      if (name.size() > suffix.size() && name.ends_with(suffix)) name.resize(name.size() - suffix.size());
    }
    names.insert(name);
  }
  return {names.begin(), names.end()};
}

void discard_checkpoint(const std::string& who, const std::string& folder) {
  remove_all(who, folder + "/" + kCheckpointFile);
  remove_all(who, folder);
}

void settle_checkpoint(const std::string& who, const std::string& path) {
  const std::optional<std::string> found = find_checkpoint(who, path);
  if (found && *found != path) give_name(who, *found, path);
  discard_checkpoint(who, path + ".partial");
  discard_checkpoint(who, path + ".replaced");
}

void exchange_checkpoint(const std::string& who, const std::string& path) {
  const std::string partial = path + ".partial";
  store_on_disk(who, partial);
  if (!is_checkpoint(who, path)) {
    give_name(who, partial, path);
  } else if (!one_step_is_possible || !exchange_names(who, partial, path)) {
    TORCH_WARN_ONCE(who, ": the file system of '", path,
                    "' cannot exchange two folders in one step; a kill between two steps leaves '", partial,
                    "' complete, which load finds");
    give_name(who, path, path + ".replaced");
    give_name(who, partial, path);
  }
}

void put_checkpoint_in_place(const std::string& who, const std::string& path) {
  exchange_checkpoint(who, path);
  discard_checkpoint(who, path + ".partial");
  discard_checkpoint(who, path + ".replaced");
}

}  // namespace moonhalo::io
