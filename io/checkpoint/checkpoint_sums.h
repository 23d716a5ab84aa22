// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/io/base/positioned_file.h"
#include "moonhalo/io/checkpoint/safetensors.h"

namespace moonhalo::io {

/// A file of a checkpoint. Its header is written twice: first without checksums, then with them.
struct CheckedFile {
  std::string path;
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Returns the exclusive or of all ranks' values, element by element. Collective over `world`.
std::vector<uint32_t> together(Communicator& world, const std::vector<uint32_t>& values);
/// Sets the checksums of the tensors of all files, in order. `addends`: for each tensor the exclusive or of the
/// contributions of its parts (crc32c.h).
void add_checksums(std::vector<CheckedFile>& files, const std::vector<uint32_t>& addends);
/// Writes the header of `file` at the beginning of `to`.
void write_header(PositionedFile& to, CheckedFile file);

}  // namespace moonhalo::io
