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

/// A safetensors file: named tensors as they are in memory, row-major and little-endian, behind a JSON header.
/// Other programs read it too. The format has no complex numbers: they are stored as pairs of reals, [..., 2], and
/// the metadata's "moonhalo.complex" says which; reading makes them complex again. "moonhalo.crc32c" has the
/// checksum of every tensor's bytes, for files that have been altered. Source: the format's page of the safetensors
/// project.

/// Writes the tensors in the order given. The file appears under its name only when it is complete and on disk.
/// `metadata` is a map of strings kept in the header. ValueError for a name given twice or a dtype that the format
/// lacks (quantised).
void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

struct SafetensorsFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  ///< on the CPU, in the order of the file
  std::map<std::string, std::string> metadata;              ///< without the notes about tensors
};
/// Reads a whole file. ValueError: no such file, cut short, other data than were saved, or a header that is not
/// one: metadata that are not strings, sizes that are not integers or do not fit the data, a name that stands
/// twice, bytes that belong to no tensor or to two.
SafetensorsFile load_safetensors(const std::string& path);

// The same in parts, for those who read and write the data themselves.

/// A tensor of a file: what it is (complex numbers are what they were made of), and which bytes of the file it takes.
struct StoredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
  std::optional<uint32_t> crc32c = {};  ///< of these bytes; not known of files of other programs
};
/// ValueError, of `who`, unless a tensor's bytes have its checksum.
void check_crc32c(const std::string& who, const std::string& path, const StoredTensor& tensor, uint32_t found);
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in the order of the header
  std::map<std::string, std::string> metadata;  ///< without the notes about tensors
};
/// Makes the header, which stands before the data. Lays the tensors one behind the other: sets their begin and end. A
/// header is as long with checksums as without. Errors as of save_safetensors.
std::string lay_out_safetensors(std::vector<StoredTensor>& tensors, std::map<std::string, std::string> metadata = {});

/// The text of a file's header as it stands there, and the size of the file, which say all that has to be checked.
struct SafetensorsText {
  std::string header;
  int64_t file_bytes = 0;
};
SafetensorsText read_safetensors_text(const std::string& path);
/// `path` is for messages. Both throw as load_safetensors does.
SafetensorsHeader parse_safetensors(const std::string& path, const SafetensorsText& text);

}  // namespace moonhalo::io
