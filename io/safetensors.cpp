// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/lazy_bits.h"
#include "io/new_file.h"

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

at::ScalarType parse_dtype(const std::string& path, const std::string& name) {
  for (const Dtype& known : kDtypes) {
    if (name == known.name) return known.type;
  }
  if (name == "C64") return at::kComplexFloat;  // of newer writers; what is written here can be read by all
  TORCH_CHECK_VALUE(false, "safetensors: '", path, "' holds the unknown dtype '", name, "'");
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

Entry read_entry(const std::string& path, const std::string& name, const Json& value) {
  try {
    const auto& offsets = value.at("data_offsets");
    return {name, parse_dtype(path, value.at("dtype").get<std::string>()),
            value.at("shape").get<std::vector<int64_t>>(), offsets.at(0).get<int64_t>(),
            offsets.at(1).get<int64_t>()};
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, "safetensors: '", path, "' has a broken entry '", name, "': ", error.what());
  }
}

void read_bytes(std::ifstream& file, const std::string& path, void* data, int64_t count) {
  file.read(static_cast<char*>(data), count);
  TORCH_CHECK_VALUE(file.gcount() == count, "safetensors: '", path, "' is cut short");
}

}  // namespace

void save_safetensors(const std::string& path,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors,
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
    header[name] = {{"dtype", dtype_name(name, pairs ? c10::toRealValueType(tensor.scalar_type()) : tensor.scalar_type())},
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
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file.good(), "safetensors: cannot open '", path, "'");
  uint64_t length = 0;
  read_bytes(file, path, &length, sizeof length);
  TORCH_CHECK_VALUE(length <= kLongestHeader, "safetensors: '", path, "' is no safetensors file");
  std::string text(length, '\0');
  read_bytes(file, path, text.data(), static_cast<int64_t>(length));
  const Json header = Json::parse(text, nullptr, false);
  TORCH_CHECK_VALUE(header.is_object(), "safetensors: '", path, "' is no safetensors file");

  SafetensorsFile result;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      for (const auto& [key, one] : value.items())
        result.metadata[key] = one.is_string() ? one.get<std::string>() : one.dump();
    } else {
      entries.push_back(read_entry(path, name, value));
    }
  }
  const auto start = static_cast<int64_t>(sizeof length + length);
  for (const Entry& entry : entries) {
    TORCH_CHECK_VALUE(std::all_of(entry.shape.begin(), entry.shape.end(), [](int64_t size) { return size >= 0; }),
                      "safetensors: '", path, "' has a negative size in '", entry.name, "'");
    at::Tensor tensor = at::empty(entry.shape, entry.dtype);
    TORCH_CHECK_VALUE(entry.begin >= 0 && entry.end - entry.begin == static_cast<int64_t>(tensor.nbytes()),
                      "safetensors: '", path, "' has offsets in '", entry.name, "' that do not fit its shape");
    file.seekg(start + entry.begin);
    read_bytes(file, path, tensor.mutable_data_ptr(), entry.end - entry.begin);
    result.tensors.emplace_back(entry.name, std::move(tensor));
  }
  restore_complex(path, result);
  return result;
}

}  // namespace moonhalo::io
