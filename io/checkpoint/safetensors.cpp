// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/checkpoint/safetensors.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>

#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/codecs/crc32c.h"

namespace moonhalo::io {

namespace {

// Large data begins with a page: between memory and pages of a file that are otherwise, copies take longer.
constexpr int64_t kLargeData = 1 << 20;
constexpr size_t kPage = 4096;

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
  TORCH_CHECK_VALUE(false, "safetensors: '", tensor, "' is of dtype ", c10::toString(type),
                    ", which the format does not have");
}

at::ScalarType parse_dtype(const std::string& name) {
  for (const Dtype& known : kDtypes) {
    if (name == known.name) return known.type;
  }
  if (name == "C64") return at::kComplexFloat;  // of newer writers; what is written here can be read by all
  TORCH_CHECK_VALUE(false, "'", name, "' is not a dtype of the format");
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

// Makes those tensors complex that the note names, and takes the note out of the metadata.
void restore_complex(const std::string& path, SafetensorsHeader& header) {
  const auto found = header.metadata.find(kComplexNote);
  if (found == header.metadata.end()) return;
  const Json note = Json::parse(found->second, nullptr, false);
  TORCH_CHECK_VALUE(note.is_object(), "safetensors: '", path,
                    "' has a broken note of its complex tensors: ", found->second);
  header.metadata.erase(found);
  std::map<std::string, StoredTensor*> by_name;
  for (StoredTensor& tensor : header.tensors) by_name[tensor.name] = &tensor;
  for (const auto& [name, dtype] : note.items()) {
    const auto named = by_name.find(name);
    if (named == by_name.end()) continue;  // left out by a program that copied the metadata
    StoredTensor& tensor = *named->second;
    const Dtype* required = std::find_if(std::begin(kComplexDtypes), std::end(kComplexDtypes),
                                         [&, &dtype = dtype](const Dtype& known) { return dtype == known.name; });
    TORCH_CHECK_VALUE(required != std::end(kComplexDtypes) && c10::toRealValueType(required->type) == tensor.dtype &&
                          !tensor.shape.empty() && tensor.shape.back() == 2,
                      "safetensors: '", path, "' says that '", name, "' is ", dtype.dump(),
                      " in pairs, but it is of dtype ", c10::toString(tensor.dtype), " and shape ",
                      at::IntArrayRef(tensor.shape));
    tensor.dtype = required->type;
    tensor.shape.pop_back();
  }
}

// A JSON object in the metadata: the CRC-32C of every tensor's bytes, as eight digits; dashes until it is known.
constexpr const char *kCrcNote = "moonhalo.crc32c", *kNoCrc = "--------";

std::string crc_text(uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

void restore_crc32c(const std::string& path, SafetensorsHeader& header) {
  const auto found = header.metadata.find(kCrcNote);
  if (found == header.metadata.end()) return;
  const Json note = Json::parse(found->second, nullptr, false);
  TORCH_CHECK_VALUE(note.is_object(), "safetensors: '", path, "' has a broken note of checksums: ", found->second);
  header.metadata.erase(found);
  for (StoredTensor& tensor : header.tensors) {
    const auto own = note.find(tensor.name);
    if (own == note.end() || *own == kNoCrc) continue;
    const std::string text = own->is_string() ? own->get<std::string>() : own->dump();
    TORCH_CHECK_VALUE(text.size() == 8 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
                      "safetensors: '", path, "' has a broken checksum of '", tensor.name, "': ", text);
    tensor.crc32c = static_cast<uint32_t>(std::stoul(text, nullptr, 16));
  }
}

int64_t read_size(const Json& value) {
  const bool fits =
      value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  TORCH_CHECK_VALUE(fits, value.dump(), " is not a size");
  return value.get<int64_t>();
}

/// The bytes of a tensor, or nothing when they are more than can be.
std::optional<int64_t> bytes_by_shape(const StoredTensor& entry) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) return 0;
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

StoredTensor read_entry(const std::string& path, const std::string& name, const Json& value, int64_t data_bytes) {
  std::string problem;
  try {
    const auto &shape = value.at("shape"), &offsets = value.at("data_offsets");
    TORCH_CHECK_VALUE(shape.is_array() && offsets.is_array() && offsets.size() == 2,
                      "shape and data_offsets are lists, the latter of two");
    StoredTensor entry{
        name, parse_dtype(value.at("dtype").get<std::string>()), {}, read_size(offsets[0]), read_size(offsets[1])};
    for (const Json& size : shape) entry.shape.push_back(read_size(size));
    TORCH_CHECK_VALUE(entry.end >= entry.begin && bytes_by_shape(entry) == entry.end - entry.begin,
                      "its offsets do not fit its shape");
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

/// ValueError unless the tensors' bytes, one after the other, are all the data: the format's reader requires it, and an
/// offset that is off does not go unseen.
void check_no_holes(const std::string& path, const std::vector<StoredTensor>& entries, int64_t data_bytes) {
  std::vector<const StoredTensor*> sorted;
  for (const StoredTensor& entry : entries) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
  });
  int64_t end = 0;
  for (const StoredTensor* entry : sorted) {
    TORCH_CHECK_VALUE(entry->begin == end, "safetensors: '", path, "' has a broken entry '", entry->name,
                      "': its data begins at byte ", entry->begin, ", that before ends at ", end);
    end = entry->end;
  }
  TORCH_CHECK_VALUE(end == data_bytes, "safetensors: '", path, "' has ", data_bytes - end,
                    " bytes that belong to no tensor");
}

/// ValueError unless it is an object whose keys stand there once.
Json read_header(const std::string& path, const std::string& text) {
  std::set<std::string> names;
  std::string last;
  const auto refuse_twice = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth != 1 || event != Json::parse_event_t::key) return true;
    last = parsed.get<std::string>();
    TORCH_CHECK_VALUE(names.insert(last).second, "safetensors: '", path, "' has the tensor '", last, "' twice");
    return true;
  };
  Json header = Json::parse(text, refuse_twice, false);
  // A number that JSON does not have, NaN say, ends the reading.
  TORCH_CHECK_VALUE(!header.is_discarded() || last.empty(), "safetensors: '", path, "' has a broken entry '", last,
                    "', at which its header ceases to be JSON");
  TORCH_CHECK_VALUE(header.is_object(), "safetensors: '", path, "' is not a safetensors file");
  return header;
}

/// The format's reader supports strings only.
std::map<std::string, std::string> read_metadata(const std::string& path, const Json& value) {
  TORCH_CHECK_VALUE(value.is_object(), "safetensors: '", path, "' has metadata that are not a table of strings");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    TORCH_CHECK_VALUE(text.is_string(), "safetensors: '", path, "' has metadata '", key, "' of type ", text.type_name(),
                      ", but they are strings");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

void read_bytes(std::ifstream& file, const std::string& path, void* data, int64_t count) {
  file.read(static_cast<char*>(data), count);
  TORCH_CHECK_VALUE(file.gcount() == count, "safetensors: '", path, "' is cut short");
}

std::ifstream open_to_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int error = errno;
  TORCH_CHECK_VALUE(file.good(), "safetensors: cannot open '", path, "': ", std::strerror(error),
                    "\n  fix   correct the path, which begins in the folder where the program runs");
  TORCH_CHECK_VALUE(!std::filesystem::is_directory(path), "safetensors: cannot open '", path, "': it is a folder");
  return file;
}

}  // namespace

std::string lay_out_safetensors(std::vector<StoredTensor>& tensors, std::map<std::string, std::string> metadata) {
  Json header = Json::object(), complex = Json::object();
  for (const StoredTensor& tensor : tensors) {
    if (c10::isComplexType(tensor.dtype)) complex[tensor.name] = complex_name(tensor.dtype);
  }
  if (!complex.empty()) {
    TORCH_CHECK_VALUE(metadata.emplace(kComplexNote, complex.dump()).second, "safetensors: the metadata's '",
                      kComplexNote, "' is taken by the note of complex tensors");
  }
  Json sums = Json::object();
  for (const StoredTensor& tensor : tensors) sums[tensor.name] = tensor.crc32c ? crc_text(*tensor.crc32c) : kNoCrc;
  if (!sums.empty()) {
    TORCH_CHECK_VALUE(metadata.emplace(kCrcNote, sums.dump()).second, "safetensors: the metadata's '", kCrcNote,
                      "' is taken by the checksums");
  }
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  std::set<std::string> names;
  for (StoredTensor& tensor : tensors) {
    TORCH_CHECK_VALUE(names.insert(tensor.name).second && tensor.name != "__metadata__", "safetensors: the name '",
                      tensor.name, "' is taken");
    const bool pairs = c10::isComplexType(tensor.dtype);
    std::vector<int64_t> shape = tensor.shape;
    if (pairs) shape.push_back(2);
    tensor.begin = offset;
    offset += c10::multiply_integers(tensor.shape) * static_cast<int64_t>(c10::elementSize(tensor.dtype));
    tensor.end = offset;
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.name, pairs ? c10::toRealValueType(tensor.dtype) : tensor.dtype)},
        {"shape", shape},
        {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  const size_t alignment = offset >= kLargeData ? kPage : sizeof(uint64_t), begin = sizeof(uint64_t) + text.size();
  text.append((alignment - begin % alignment) % alignment, ' ');
  const uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  for (StoredTensor& tensor : tensors) {
    tensor.begin += static_cast<int64_t>(text.size());
    tensor.end += static_cast<int64_t>(text.size());
  }
  return text;
}

void check_crc32c(const std::string& who, const std::string& path, const StoredTensor& tensor, uint32_t found) {
  TORCH_CHECK_VALUE(!tensor.crc32c || *tensor.crc32c == found, who, ": '", path, "' is damaged: the data of '",
                    tensor.name, "' are not those that were saved\n  have  CRC-32C ", crc_text(found), ", saved ",
                    crc_text(*tensor.crc32c), "\n  fix   load another copy, or an older checkpoint");
}

SafetensorsText read_safetensors_text(const std::string& path) {
  std::ifstream file = open_to_read(path);
  SafetensorsText text{.file_bytes = static_cast<int64_t>(file.tellg())};
  file.seekg(0);
  uint64_t length = 0;
  read_bytes(file, path, &length, sizeof length);
  constexpr uint32_t kZip = 0x04034b50;  // "PK\3\4"
  TORCH_CHECK_VALUE(
      length <= kLongestHeader, "safetensors: '", path, "' is not a safetensors file",
      static_cast<uint32_t>(length) == kZip ? "\n  have  a zip archive\n  fix   load it as a file of torch.save" : "");
  text.header.resize(length);
  read_bytes(file, path, text.header.data(), static_cast<int64_t>(length));
  return text;
}

SafetensorsHeader parse_safetensors(const std::string& path, const SafetensorsText& text) {
  const Json json = read_header(path, text.header);
  const auto start = static_cast<int64_t>(sizeof(uint64_t) + text.header.size());
  SafetensorsHeader header;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(path, value);
    } else {
      header.tensors.push_back(read_entry(path, name, value, text.file_bytes - start));
    }
  }
  check_no_holes(path, header.tensors, text.file_bytes - start);
  restore_complex(path, header);
  restore_crc32c(path, header);
  for (StoredTensor& tensor : header.tensors) {
    tensor.begin += start;
    tensor.end += start;
  }
  return header;
}

void save_safetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<StoredTensor> all;
  const auto dense = [](const at::Tensor& tensor) {
    return materialize_lazy_bits(tensor.detach()).to(at::kCPU).contiguous();
  };
  for (const auto& [name, tensor] : tensors) {
    dtype_name(name, c10::isComplexType(tensor.scalar_type()) ? at::kFloat : tensor.scalar_type());
    const at::Tensor bytes = dense(tensor);
    check_computed(bytes, "safetensors: '" + name + "'");
    all.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    all.back().crc32c = crc32c(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  const std::string header = lay_out_safetensors(all, metadata);
  NewFile file("safetensors", path);
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bytes = dense(tensor);
    file.write(bytes.const_data_ptr(), bytes.nbytes());
  }
  file.finish();
}

SafetensorsFile load_safetensors(const std::string& path) {
  SafetensorsHeader header = parse_safetensors(path, read_safetensors_text(path));
  SafetensorsFile result{.tensors = {}, .metadata = std::move(header.metadata)};
  std::ifstream file = open_to_read(path);
  for (const StoredTensor& entry : header.tensors) {
    const at::Tensor& tensor = result.tensors.emplace_back(entry.name, at::empty(entry.shape, entry.dtype)).second;
    if (is_fake(tensor)) continue;  // it has no memory of its own
    file.seekg(entry.begin);
    read_bytes(file, path, tensor.mutable_data_ptr(), entry.end - entry.begin);
    check_crc32c("safetensors", path, entry,
                 crc32c(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()));
  }
  return result;
}

}  // namespace moonhalo::io
