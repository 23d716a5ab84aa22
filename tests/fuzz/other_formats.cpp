// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/other_formats.h"

#include <cstring>
#include <functional>
#include <vector>

#include "tests/io/support/classic_file.h"
#include "tests/io/support/zarr_folder.h"

namespace moonhalo::testing {
namespace {

/// One run of bytes that are not compressed.
std::string with_lz4(const std::string& bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  TORCH_INTERNAL_ASSERT(size >= 15 && size < 15 + 255);
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + "\xf0" + static_cast<char>(size - 15) +
         bytes;
}

template <typename Number>
std::string changed(const std::string& bytes, const std::function<Number(float value, float before)>& change) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  std::vector<Number> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = change(values[i], i > 0 ? values[i - 1] : 0);
  return {reinterpret_cast<const char*>(result.data()), result.size() * sizeof(Number)};
}
std::string with_delta(const std::string& bytes) {
  return changed<float>(bytes, [](float value, float before) { return value - before; });
}
std::string with_scale(const std::string& bytes) {
  return changed<int16_t>(bytes, [](float value, float) { return static_cast<int16_t>((value - 1) * 100); });
}

at::Tensor numbers() { return (at::arange(11 * 13, at::kFloat) * 0.37 + 1).reshape({11, 13}); }

std::string npy(char version, const std::string& dict) {
  const std::string head = dict + std::string(128 - dict.size() - (version == 1 ? 10 : 12) - 1, ' ') + '\n';
  const std::string length = std::string(1, static_cast<char>(head.size())) + std::string(version == 1 ? 1 : 3, '\0');
  const at::Tensor values = numbers();
  return std::string("\x93NUMPY") + version + '\0' + length + head +
         std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
}

InputFiles named(const ZarrFolder& folder, bool checked) {
  InputFiles input{.files = {}, .checked = checked};
  for (const auto& [name, bytes] : folder.files) input.files[kZarr + "/" + name] = bytes;
  return input;
}

ZarrFolder version2() {
  ZarrFolder folder;
  folder.files[".zgroup"] = R"({"zarr_format": 2})";
  folder.files[".zattrs"] = R"({"title": "by hand", "levels": [1, 2.5, NaN]})";
  folder.add2("plain", numbers(), 4, 5, "null", plain_bytes);
  folder.add2("deep/blosc", numbers(), 4, 5, kBlosc2, with_blosc);
  folder.files["deep/.zgroup"] = R"({"zarr_format": 2})";
  folder.add2("gzip", numbers(), 4, 5, R"({"id": "gzip", "level": 6})", with_gzip);
  folder.files[".zmetadata"] = R"({"metadata": {"plain/.zarray": {}}, "zarr_consolidated_format": 1})";
  return folder;
}

void add_filtered(ZarrFolder& folder, const std::string& name, const std::string& filter, const Encode& encode) {
  folder.add2(name, numbers(), 4, 5, R"({"id": "lz4"})", encode);
  std::string& head = folder.files[name + "/.zarray"];
  const std::string none = R"("filters": null)";
  head.replace(head.find(none), none.size(), R"("filters": [)" + filter + "]");
}

ZarrFolder filtered() {
  ZarrFolder folder;
  folder.files[".zgroup"] = R"({"zarr_format": 2})";
  folder.add2("lz4", numbers(), 4, 5, R"({"id": "lz4"})", with_lz4);
  folder.add2("zstd", numbers(), 4, 5, R"({"id": "zstd", "level": 1})", with_zstd);
  add_filtered(folder, "delta", R"({"id": "delta", "dtype": "<f4"})", [](auto& b) { return with_lz4(with_delta(b)); });
  add_filtered(folder, "scaled",
               R"({"id": "fixedscaleoffset", "dtype": "<f4", "astype": "<i2", "scale": 100, "offset": 1})",
               [](auto& b) { return with_lz4(with_scale(b)); });
  add_filtered(folder, "shuffle", R"({"id": "shuffle", "elementsize": 4})", with_lz4);
  return folder;
}

ZarrFolder version3() {
  ZarrFolder folder;
  folder.files["zarr.json"] = kGroup3;
  folder.add3("plain", numbers(), 4, 5, "", plain_bytes);
  folder.add3("gzip", numbers(), 4, 5, kGzip3, with_gzip);
  folder.add_shards("shards", numbers(), 2, 3, kZstd3, with_zstd);
  folder.add_shards("shards_plain", numbers(), 2, 3, "", plain_bytes);
  return folder;
}

ZarrFolder checked() {
  ZarrFolder folder;
  folder.files["zarr.json"] = kGroup3;
  folder.add3("sums", numbers(), 4, 5, kCrc3, with_crc32c);
  folder.add3("sums_around", numbers(), 4, 5, std::string(kZstd3) + kCrc3,
              [](auto& b) { return with_crc32c(with_zstd(b)); });
  folder.add_shards("shards", numbers(), 2, 3, std::string(kGzip3) + kCrc3,
                    [](auto& b) { return with_crc32c(with_gzip(b)); });
  return folder;
}

}  // namespace

std::vector<InputFiles> other_formats() {
  std::vector<InputFiles> inputs;
  for (const int version : {1, 2, 5}) {
    ClassicFile file = classic_example(version);
    std::erase_if(file.variables, [](const ClassicFile::Variable& variable) { return variable.type == 2; });  // text
    inputs.push_back({.files = {{kClassic, file.bytes()}}});
  }
  inputs.push_back({.files = {{kNpy, npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (11, 13), }")}}});
  inputs.push_back({.files = {{kNpy, npy(2, "{'descr': '>c8', 'fortran_order': True, 'shape': (6, 11), }")}}});
  inputs.push_back(named(version2(), false));
  inputs.push_back(named(filtered(), false));
  inputs.push_back(named(version3(), false));
  inputs.push_back(named(checked(), true));
  return inputs;
}

}  // namespace moonhalo::testing
