// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moonhalo::io::h5 {

/// The name of a file or dataset that a virtual dataset stores: "%%" stands for one percent sign, "%b" for the number
/// of a block, so that "part-%b.h5" means part-0.h5, part-1.h5 and so on.
class SourceName {
 public:
  explicit SourceName(const std::string& stored);

  bool is_numbered() const { return pieces_.size() > 1; }
  /// The name as HDF5 opens it.
  std::string of(uint64_t block) const;
  /// The number with which `name` is the last part (behind the last "/") of that block's name.
  std::optional<uint64_t> block_of(const std::string& name) const;
  /// The folder or group of all blocks, which stands before the last "/"; "" where there is none. Nothing where the
  /// folders themselves have numbers.
  std::optional<std::string> folder() const;

 private:
  std::vector<std::string> pieces_;  // between them stands the number
};

}  // namespace moonhalo::io::h5
