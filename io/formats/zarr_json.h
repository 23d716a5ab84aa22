// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "moonhalo/io/formats/catalog.h"
#include "moonhalo/io/formats/folder_policy.h"

namespace moonhalo::io {

using Json = nlohmann::json;

/// Metadata that are damaged, or none of Zarr, or not to be read. Says what is the case, and the remedy where there is
/// another than to copy the files again.
struct BrokenZarr : std::runtime_error {
  explicit BrokenZarr(const std::string& have, const std::string& fix = "copy or download it again")
      : BrokenZarr("damaged, cannot be opened", have, fix) {}
  BrokenZarr(const std::string& what, const std::string& have, const std::string& fix)
      : std::runtime_error(what + "\n  have  " + have + "\n  fix   " + fix) {}
};

/// BrokenZarr where a link leads `path` outside.
void check_inside(const FolderReach& reach, const std::string& path);
/// The object that a metadata file holds; null where there is no file.
Json read_json(const std::string& path, const FolderReach& reach);
/// The value of a key, which must be there.
const Json& need(const Json& object, const char* key);
/// As above, as a string, or as sizes that are no less than `least`.
std::string need_text(const Json& object, const char* key);
std::vector<int64_t> need_sizes(const Json& object, const char* key, int64_t least);

/// Python writes numbers that JSON does not have into attributes; read_json makes them strings that begin so.
inline constexpr const char* kNotANumber = "\x01";
/// NaN, Infinity and -Infinity by name, or as one of those strings; nothing for another text.
std::optional<double> special_number(const std::string& text);

/// Attributes of a JSON object; what is neither number, text nor a list of them is its JSON text.
Catalog::AttributeMap attributes_of(const Json& object);
std::string from_base64(const std::string& text);

}  // namespace moonhalo::io
