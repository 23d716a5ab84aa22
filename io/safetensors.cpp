// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <bit>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

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
  TORCH_CHECK_VALUE(false, "safetensors: '", path, "' holds the unknown dtype '", name, "'");
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
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(names.insert(name).second && name != "__metadata__", "safetensors: the name '", name,
                      "' is taken");
    const int64_t bytes = static_cast<int64_t>(tensor.nbytes());
    header[name] = {{"dtype", dtype_name(name, tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');

  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  TORCH_CHECK_VALUE(file.good(), "safetensors: cannot write '", path, "'\n  fix   make its folder first");
  const uint64_t length = text.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(text.data(), static_cast<std::streamsize>(length));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bytes = tensor.detach().to(at::kCPU).contiguous();
    file.write(static_cast<const char*>(bytes.const_data_ptr()),
               static_cast<std::streamsize>(bytes.nbytes()));
  }
  file.close();
  if (!file.good()) {
    std::remove(partial.c_str());
    TORCH_CHECK(false, "safetensors: the disk refused '", path, "' (", offset, " bytes)");
  }
  std::filesystem::rename(partial, path);
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
  return result;
}

}  // namespace moonhalo::io
