// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/other_formats.h"

#include "tests/io/classic_file.h"
#include "tests/io/zarr_folder.h"

namespace moonhalo::testing {
namespace {

at::Tensor numbers() { return (at::arange(11 * 13, at::kFloat) * 0.37 + 1).reshape({11, 13}); }

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
  inputs.push_back(named(version2(), false));
  inputs.push_back(named(version3(), false));
  inputs.push_back(named(checked(), true));
  return inputs;
}

}  // namespace moonhalo::testing
