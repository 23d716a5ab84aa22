// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moonhalo/io/base/new_file.h"

namespace moonhalo::io {

/// Writes a zip archive of stored entries, each with its CRC-32, whose data begin at multiples of 64 bytes, as PyTorch
/// aligns them. Large files get the records of zip64. The file appears under its name when it is complete.
class ZipWriter {
 public:
  /// `who` begins the messages. Errors as of NewFile.
  ZipWriter(const std::string& who, const std::string& path) : file_(who, path) {}
  void add(std::string_view name, const void* data, uint64_t bytes);
  void add(std::string_view name, std::string_view text) { add(name, text.data(), text.size()); }
  void finish();

 private:
  void write(std::string_view bytes);

  NewFile file_;
  uint64_t at_ = 0, entries_ = 0;
  std::string directory_;
};

}  // namespace moonhalo::io
