// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/safetensors.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/io/new_file.h"

namespace moonhalo::io {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using Json = nlohmann::ordered_json;

constexpr uint64_t kLongestHeader = 100u << 20;  // the limit of the format's own reader

struct Dtype {
  const char* name;
  at::ScalarType type;
};
constexpr Dtype kDtypes[] = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
    {"U16", at::kUInt16},
    {"U32", at::kUInt32},
    {"U64", at::kUInt64},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
};

const char* dtype_name(const std::string& tensor, at::ScalarType type) {
  for (const Dtype& known : kDtypes) {
    if (known.type == type) return known.name;
  }
  TORCH_CHECK_VALUE(false, "safetensors: '", tensor, "' is of dtype ", c10::toString(type), ", which the format does not have");
}

at::ScalarType parse_dtype(const std::string& name) {
  for (const Dtype& known : kDtypes) {
    if (name == known.name) return known.type;
  }
  if (name == "C64") return at::kComplexFloat;  // of newer writers; what is written here can be read by all
  TORCH_CHECK_VALUE(false, "'", name, "' is no dtype of the format");
}

// A JSON object in the metadata: the dtype of every tensor that is stored as pairs of reals.
constexpr const char* kComplexNote = "moonhalo.complex";

constexpr Dtype kComplexDtypes[] = {
    {"complex32", at::kComplexHalf}, {"complex64", at::kComplexFloat}, {"complex128", at::kComplexDouble}};

const char* complex_name(at::ScalarType type) {
  for (const Dtype& known : kComplexDtypes) {
    if (known.type == type) return known.name;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown complex dtype ", c10::toString(type));
}

// What is written for a tensor: lazy conjugations and signs done, complex numbers as pairs.
at::Tensor stored(const at::Tensor& tensor) {
  const at::Tensor plain = carried_out(tensor.detach());
  return plain.is_complex() ? at::view_as_real(plain) : plain;
}

// Makes those tensors complex that the note names, and takes the note out of the metadata.
void restore_complex(const std::string& path, SafetensorsFile& file) {
  const auto found = file.metadata.find(kComplexNote);
  if (found == file.metadata.end()) return;
  const Json note = Json::parse(found->second, nullptr, false);
  TORCH_CHECK_VALUE(note.is_object(), "safetensors: '", path, "' has a broken note of its complex tensors: ", found->second);
  file.metadata.erase(found);
  std::map<std::string, at::Tensor*> by_name;
  for (auto& [name, tensor] : file.tensors) by_name[name] = &tensor;
  for (const auto& [name, dtype] : note.items()) {
    const auto named = by_name.find(name);
    if (named == by_name.end()) continue;  // left out by a program that copied the metadata
    at::Tensor& tensor = *named->second;
    const Dtype* wanted = std::find_if(std::begin(kComplexDtypes), std::end(kComplexDtypes),
                                       [&, &dtype = dtype](const Dtype& known) { return dtype == known.name; });
    TORCH_CHECK_VALUE(wanted != std::end(kComplexDtypes) && c10::toRealValueType(wanted->type) == tensor.scalar_type() &&
                          tensor.dim() > 0 && tensor.size(-1) == 2,
                      "safetensors: '", path, "' says that '", name, "' is ", dtype.dump(), " in pairs, but it is of dtype ",
                      c10::toString(tensor.scalar_type()), " and shape ", tensor.sizes());
    tensor = at::view_as_complex(tensor);
  }
}

struct Entry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin, end;
};

int64_t read_size(const Json& value) {
  const bool fits =
      value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  TORCH_CHECK_VALUE(fits, value.dump(), " is no size");
  return value.get<int64_t>();
}

/// The bytes of a tensor, or nothing when they are more than can be.
std::optional<int64_t> bytes_of(const Entry& entry) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) return 0;
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

Entry read_entry(const std::string& path, const std::string& name, const Json& value, int64_t data_bytes) {
  std::string problem;
  try {
    const auto &shape = value.at("shape"), &offsets = value.at("data_offsets");
    TORCH_CHECK_VALUE(shape.is_array() && offsets.is_array() && offsets.size() == 2, "shape and data_offsets are lists, the latter of two");
    Entry entry{
        name, parse_dtype(value.at("dtype").get<std::string>()), {}, read_size(offsets[0]), read_size(offsets[1])};
    for (const Json& size : shape) entry.shape.push_back(read_size(size));
    TORCH_CHECK_VALUE(entry.end >= entry.begin && bytes_of(entry) == entry.end - entry.begin, "its offsets do not fit its shape");
    TORCH_CHECK_VALUE(entry.end <= data_bytes, "its data ends after that of the file, which is cut short");
    return entry;
  } catch (const Json::exception& error) {
    problem = error.what();
    problem = problem.substr(problem.find("] ") + 2);  // less the exception's name
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  }
  TORCH_CHECK_VALUE(false, "safetensors: '", path, "' has a broken entry '", name, "': ", problem);
}

/// ValueError unless the tensors' bytes, one after the other, are all the data: the format's reader wants it so, and an
/// offset that is off does not go unseen.
void check_no_holes(const std::string& path, const std::vector<Entry>& entries, int64_t data_bytes) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(),
            [](const Entry* a, const Entry* b) { return std::tie(a->begin, a->end) < std::tie(b->begin, b->end); });
  int64_t end = 0;
  for (const Entry* entry : sorted) {
    TORCH_CHECK_VALUE(entry->begin == end, "safetensors: '", path, "' has a broken entry '", entry->name, "': its data begins at byte ",
                      entry->begin, ", that before ends at ", end);
    end = entry->end;
  }
  TORCH_CHECK_VALUE(end == data_bytes, "safetensors: '", path, "' has ", data_bytes - end, " bytes that belong to no tensor");
}

/// ValueError unless it is an object whose keys stand there once.
Json read_header(const std::string& path, const std::string& text) {
  std::set<std::string> names;
  const auto refuse_twice = [&](int depth, Json::parse_event_t event, Json& parsed) {
    TORCH_CHECK_VALUE(depth != 1 || event != Json::parse_event_t::key || names.insert(parsed.get<std::string>()).second,
                      "safetensors: '", path, "' has the tensor '", parsed.get<std::string>(), "' twice");
    return true;
  };
  Json header = Json::parse(text, refuse_twice, false);
  TORCH_CHECK_VALUE(header.is_object(), "safetensors: '", path, "' is no safetensors file");
  return header;
}

/// The format's reader knows texts only.
std::map<std::string, std::string> read_metadata(const std::string& path, const Json& value) {
  TORCH_CHECK_VALUE(value.is_object(), "safetensors: '", path, "' has metadata that are no table of texts");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    TORCH_CHECK_VALUE(text.is_string(), "safetensors: '", path, "' has metadata '", key, "' of type ", text.type_name(),
                      ", but they are texts");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

void read_bytes(std::ifstream& file, const std::string& path, void* data, int64_t count) {
  file.read(static_cast<char*>(data), count);
  TORCH_CHECK_VALUE(file.gcount() == count, "safetensors: '", path, "' is cut short");
}

}  // namespace

void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  Json header = Json::object(), complex = Json::object();
  std::map<std::string, std::string> notes = metadata;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_complex()) complex[name] = complex_name(tensor.scalar_type());
  }
  if (!complex.empty()) {
    TORCH_CHECK_VALUE(notes.emplace(kComplexNote, complex.dump()).second, "safetensors: the metadata's '", kComplexNote,
                      "' is taken by the note of complex tensors");
  }
  if (!notes.empty()) header["__metadata__"] = notes;
  int64_t offset = 0;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(names.insert(name).second && name != "__metadata__", "safetensors: the name '", name,
                      "' is taken");
    const int64_t bytes = static_cast<int64_t>(tensor.nbytes());
    const bool pairs = tensor.is_complex();
    std::vector<int64_t> shape = tensor.sizes().vec();
    if (pairs) shape.push_back(2);
    header[name] = {
        {"dtype", dtype_name(name, pairs ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type())},
        {"shape", shape},
        {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');

  NewFile file("safetensors", path);
  const uint64_t length = text.size();
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bytes = stored(tensor).to(at::kCPU).contiguous();
    file.write(bytes.const_data_ptr(), bytes.nbytes());
  }
  file.finish();
}

SafetensorsFile load_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int error = errno;
  TORCH_CHECK_VALUE(file.good(), "safetensors: cannot open '", path, "': ", std::strerror(error));
  TORCH_CHECK_VALUE(!std::filesystem::is_directory(path), "safetensors: cannot open '", path, "': it is a folder");
  const auto file_bytes = static_cast<int64_t>(file.tellg());
  file.seekg(0);
  uint64_t length = 0;
  read_bytes(file, path, &length, sizeof length);
  TORCH_CHECK_VALUE(length <= kLongestHeader, "safetensors: '", path, "' is no safetensors file");
  std::string text(length, '\0');
  read_bytes(file, path, text.data(), static_cast<int64_t>(length));
  const Json header = read_header(path, text);

  SafetensorsFile result;
  std::vector<Entry> entries;
  const auto start = static_cast<int64_t>(sizeof length + length);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      result.metadata = read_metadata(path, value);
    } else {
      entries.push_back(read_entry(path, name, value, file_bytes - start));
    }
  }
  check_no_holes(path, entries, file_bytes - start);
  for (const Entry& entry : entries) {
    at::Tensor tensor = at::empty(entry.shape, entry.dtype);
    file.seekg(start + entry.begin);
    read_bytes(file, path, tensor.mutable_data_ptr(), entry.end - entry.begin);
    result.tensors.emplace_back(entry.name, std::move(tensor));
  }
  restore_complex(path, result);
  return result;
}

}  // namespace moonhalo::io
