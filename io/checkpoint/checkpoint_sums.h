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

/// A file of a checkpoint, whose header is written again when the checksums of its tensors are known.
struct CheckedFile {
  std::string path;
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// The exclusive or of all ranks' values, one by one. Collective.
std::vector<uint32_t> together(Communicator& world, const std::vector<uint32_t>& values);
/// Gives the tensors of all files, in order, their checksums; `addends`: of all their parts (crc32c.h).
void add_checksums(std::vector<CheckedFile>& files, const std::vector<uint32_t>& addends);
void write_header(PositionedFile& to, CheckedFile file);

}  // namespace moonhalo::io
