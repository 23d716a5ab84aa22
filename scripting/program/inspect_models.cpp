// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/inspect_models.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/checkpoint/safetensors.h"
#include "moonhalo/io/pytorch/pt_file.h"
#include "moonhalo/io/pytorch/pt_names.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

constexpr size_t kTarMark = 257, kHeadBytes = 262;

/// The first bytes of a regular file; fewer where it is shorter.
std::string head_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";
  std::string head(kHeadBytes, '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(head.data(), kHeadBytes);
  head.resize(static_cast<size_t>(stream.gcount()));
  return head;
}

bool is_safetensors(const std::string& path, const std::string& head) {
  uint64_t length = 0;
  if (head.size() < 10) return false;
  std::memcpy(&length, head.data(), sizeof length);
  return head[8] == '{' && length <= std::filesystem::file_size(path);
}

bool is_archive(const std::string& head) {
  return head.starts_with("PK\3\4") || (head.size() == kHeadBytes && head.compare(kTarMark, 5, "ustar") == 0);
}

/// Control characters of a name would move the cursor.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; }, '?');
  return text;
}

void print_tensor(const std::string& name, at::ScalarType dtype, const std::vector<int64_t>& shape) {
  std::printf("%s  %s %s\n", printable(name).c_str(), dtype_name(dtype).c_str(), shape_string(shape).c_str());
}

void print_safetensors(const std::string& path) {
  const io::SafetensorsHeader header = io::parse_safetensors(path, io::read_safetensors_text(path));
  std::printf("%s  safetensors, %zu tensors\n", path.c_str(), header.tensors.size());
  for (const auto& [name, text] : header.metadata)
    std::printf("  @%s = %s\n", printable(name).c_str(), printable(text).c_str());
  for (const io::StoredTensor& tensor : header.tensors) print_tensor(tensor.name, tensor.dtype, tensor.shape);
}

void print_entries(const std::string& path, const std::vector<io::ArchiveEntry>& entries) {
  std::printf("%s  zip archive, %zu entries\n", path.c_str(), entries.size());
  for (const io::ArchiveEntry& entry : entries) {
    std::printf("%s  %lld bytes%s\n", printable(entry.name).c_str(), static_cast<long long>(entry.bytes),
                entry.stored ? "" : ", compressed");
  }
}

void print_pt(const std::string& path) {
  const auto file = io::PtFile::open(path);
  const io::Pickle& pickle = file->pickle();
  const std::vector<io::PtName> names = io::pt_names("inspect: file \"" + path + "\"", pickle);
  const auto tensors = std::count_if(names.begin(), names.end(),
                                     [](const io::PtName& one) { return one.value.kind == io::PickleKind::kTensor; });
  std::printf("%s  %s, %lld tensors\n", path.c_str(), file->format().c_str(), static_cast<long long>(tensors));
  for (const auto& [name, text] : file->notes()) std::printf("  @%s = %s\n", name.c_str(), printable(text).c_str());
  for (const io::PtName& one : names) {
    const bool stored = one.value.kind == io::PickleKind::kTensor || one.value.kind == io::PickleKind::kStorage;
    const std::string name = one.name.empty() ? "." : one.name;
    if (stored) {
      print_tensor(name, file->tensor(one.value).dtype, file->tensor(one.value).shape);
    } else if (!one.same_as.empty()) {
      std::printf("%s: the same as %s\n", printable(name).c_str(), printable(one.same_as).c_str());
    } else if (one.value.kind == io::PickleKind::kObject) {
      std::printf("%s: %s\n", printable(name).c_str(), printable(io::pickle_class(pickle, one.value)).c_str());
    } else {
      std::printf("%s = %s\n", printable(name).c_str(), printable(io::pickle_text(pickle, one.value)).c_str());
    }
  }
}

}  // namespace

bool is_model_file(const std::string& path) {
  const std::string head = head_of(path);
  return is_archive(head) || is_safetensors(path, head);
}

void print_model_file(const std::string& path) {
  const std::string head = head_of(path);
  if (!is_archive(head)) return print_safetensors(path);
  if (head.starts_with("PK")) {
    const std::vector<io::ArchiveEntry> entries = io::list_zip_file(path);
    const bool has_model = std::any_of(entries.begin(), entries.end(), [](const io::ArchiveEntry& entry) {
      return entry.name.ends_with("data.pkl") || entry.name == "model.pt";
    });
    if (!has_model) return print_entries(path, entries);
  }
  print_pt(path);
}

}  // namespace moonhalo::scripting
