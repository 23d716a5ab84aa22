// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo::io {

// The safetensors format, which other programs read too: a JSON header, then the bytes of named tensors, row-major and
// little-endian. The format has no complex numbers. They are stored as pairs of reals, [..., 2], and listed in the
// metadata "moonhalo.complex"; reading converts them back. "moonhalo.crc32c" has the checksum of each tensor, which
// detects altered files. Source: the format's page of the safetensors project.

/// Writes the tensors in the order given. The file gets its name when it is complete and on the disk. `metadata`:
/// strings for the header. Throws ValueError for a name given twice or a dtype that the format lacks (quantised).
void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

/// The contents of a file.
struct SafetensorsFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  ///< on the CPU, in the order of the file
  std::map<std::string, std::string> metadata;              ///< without the notes about tensors
};
/// Reads a whole file. Throws ValueError if it does not exist, is cut short, fails a checksum, or has a damaged header:
/// metadata that are not strings, sizes that are not integers or do not fit the data, a name twice, bytes that belong
/// to no tensor or to two. The data of tensors that are fake (FakeResults) are not read.
SafetensorsFile load_safetensors(const std::string& path);

// The steps of these functions, for callers that read and write the data themselves.

/// One tensor of a file: its name, dtype and shape, and where its bytes are. Complex tensors have the dtype and shape
/// that they were saved from.
struct StoredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
  std::optional<uint32_t> crc32c = {};  ///< the checksum of these bytes, if the file has one
};
/// Throws ValueError, which begins with `who`, if `found` is not the checksum of `tensor`.
void check_crc32c(const std::string& who, const std::string& path, const StoredTensor& tensor, uint32_t found);
/// A parsed header.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in the order of the header
  std::map<std::string, std::string> metadata;  ///< without the notes about tensors
};
/// Returns the bytes of the header, and sets `begin` and `end` of the tensors, one after the other behind it. A header
/// with checksums has the same length as one without. Throws as save_safetensors does.
std::string lay_out_safetensors(std::vector<StoredTensor>& tensors, std::map<std::string, std::string> metadata = {});

/// The header of a file, not parsed, and the size of the file: parse_safetensors checks a file by these alone.
struct SafetensorsText {
  std::string header;
  int64_t file_bytes = 0;
};
SafetensorsText read_safetensors_text(const std::string& path);
/// Parses and checks a header. `path` is for messages. Both functions throw as load_safetensors does.
SafetensorsHeader parse_safetensors(const std::string& path, const SafetensorsText& text);

}  // namespace moonhalo::io
