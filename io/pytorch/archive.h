// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moonhalo/io/base/positioned_file.h"

namespace moonhalo::io {

/// A file within an archive: which bytes of the archive's file it takes.
struct ArchiveEntry {
  std::string name;               ///< as the archive has it, with its folders: "model/data.pkl"
  int64_t offset = 0, bytes = 0;  ///< where its first byte is in the archive's file, and how many it has
  bool stored = true;             ///< false: compressed or encrypted, so it is listed only
};

/// A file that is open, and a range of its bytes: an archive may be an entry of another one. Not collective.
struct FileRange {
  std::string what;  ///< begins the messages: "load: file \"x.pt\""
  const PositionedFile* file = nullptr;
  int64_t begin = 0, end = 0;  ///< the first byte, and the one behind the last

  /// The number of bytes of the range.
  int64_t bytes() const { return end - begin; }
  std::string read(int64_t offset, int64_t count) const;  ///< `offset` from `begin`
  /// ValueError "what: damaged ...", unless `good`.
  void check(bool good, const std::string& damage) const;
};

/// True where the bytes begin as a zip archive with entries, or as a tar archive. Not collective.
bool is_zip(const FileRange& range);
bool is_tar(const FileRange& range);

/// The entries of a zip archive (zip64, too) in the order of its directory, or of a tar archive. Their offsets are
/// those of the file. ValueError for an archive that is damaged or cut short, a name that it has twice, entries that
/// overlap or leave the archive, and more than a million entries. Not collective.
std::vector<ArchiveEntry> read_zip(const FileRange& range);
std::vector<ArchiveEntry> read_tar(const FileRange& range);

}  // namespace moonhalo::io
