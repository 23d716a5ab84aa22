// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/folder_policy.h"

#include <filesystem>

namespace moonhalo::io {
namespace fs = std::filesystem;
namespace {

fs::path without_links(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? fs::path() : found;
}

}  // namespace

FolderReach::FolderReach(const std::string& folder, bool allow_external)
    : folder_(without_links(folder).string()), allow_external_(allow_external) {
  if (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
}

std::optional<std::string> FolderReach::outside_by_links(const std::string& path) const {
  const fs::path target = without_links(path), way = target.lexically_relative(folder_);
  const bool inside = !way.empty() && *way.begin() != "..";
  return inside ? std::nullopt : std::optional(target.empty() ? path : target.string());
}

std::optional<std::string> FolderReach::outside(const std::string& path) const {
  if (allow_external_) return std::nullopt;
  std::error_code ignored;
  if (fs::is_symlink(fs::symlink_status(path, ignored))) return outside_by_links(path);
  const std::string folder = fs::path(path).parent_path().string();
  {
    const std::lock_guard lock(mutex_);
    if (inside_.contains(folder)) return std::nullopt;
  }
  if (auto target = outside_by_links(path)) return target;
  const std::lock_guard lock(mutex_);
  inside_.insert(folder);
  return std::nullopt;
}

}  // namespace moonhalo::io
