// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace moonhalo::io {

/// A safetensors file: named tensors as they lie in memory, row-major and little-endian, behind a JSON header. Other
/// programs read it too. The format knows no complex numbers: they are stored as pairs of reals, [..., 2], and the
/// metadata's "moonhalo.complex" says which; reading makes them complex again. Source: the format's page of the
/// safetensors project.

/// Writes the tensors in the order given. The file appears under its name only when it is complete and on disk.
/// `metadata` is a map of texts kept in the header. ValueError for a name given twice or a dtype that the format lacks
/// (quantised).
void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

struct SafetensorsFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  ///< on the CPU, in the order of the file
  std::map<std::string, std::string> metadata;              ///< without the note about complex tensors
};
/// Reads a whole file. ValueError: no such file, cut short, or a header that is not one: metadata that are no texts,
/// sizes that are no integers or do not fit the data, a name that stands twice, bytes that belong to no tensor or to
/// two.
SafetensorsFile load_safetensors(const std::string& path);

}  // namespace moonhalo::io
