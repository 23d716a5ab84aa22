// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace moonhalo::io {

/// Says which symbolic links of a folder may be followed: those that stay in it, or all where the caller allowed it.
/// Any file could be shown as an array's data otherwise. Threads may share one.
class FolderReach {
 public:
  static constexpr const char* kFix = "if you trust the folder, open it with allow_external = true";

  FolderReach(const std::string& folder, bool allow_external);

  /// The folder without symbolic links.
  const std::string& real_folder() const { return folder_; }
  /// Where `path`, a file or folder that begins with the folder's name, leads to if it is not to be read. The result of
  /// its folder is kept, so that many files of a folder cost one look.
  std::optional<std::string> outside(const std::string& path) const;

 private:
  std::optional<std::string> outside_by_links(const std::string& path) const;

  std::string folder_;
  const bool allow_external_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> inside_;  // folders that were looked at
};

}  // namespace moonhalo::io
