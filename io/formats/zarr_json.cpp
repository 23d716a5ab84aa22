// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/zarr_json.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

namespace moonhalo::io {
namespace {

constexpr int64_t kLargestSize = int64_t{1} << 60;
constexpr off_t kLargestFile = off_t{256} << 20;
constexpr size_t kDeepestJson = 64;

/// Puts bare NaN, Infinity and -Infinity in quotes. False for what is nested too deep to be metadata.
bool quote_numbers(const std::string& text, std::string& quoted) {
  bool inside = false;
  size_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside && c == '\\' && i + 1 < text.size()) {
      quoted += c;
      quoted += text[++i];
      continue;
    }
    if (c == '"') inside = !inside;
    if (!inside && (c == '[' || c == '{') && ++depth > kDeepestJson) return false;
    if (!inside && (c == ']' || c == '}') && depth > 0) --depth;
    bool special = false;
    for (const std::string name : {"NaN", "Infinity", "-Infinity"}) {
      if (inside || text.compare(i, name.size(), name) != 0) continue;
      quoted += "\"\\u0001" + name + "\"";
      i += name.size() - 1;
      special = true;
      break;
    }
    if (!special) quoted += c;
  }
  return true;
}

bool is_number(const Json& value) {
  return value.is_number() || (value.is_string() && value.get_ref<const std::string&>().starts_with(kNotANumber));
}

double number(const Json& value) {
  return value.is_string() ? *special_number(value.get_ref<const std::string&>()) : value.get<double>();
}

bool is_whole(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
}

Catalog::Attribute list_attribute(const Json& list) {
  if (list.empty()) return {std::vector<std::string>{}};
  if (std::all_of(list.begin(), list.end(), is_whole)) return {list.get<std::vector<int64_t>>()};
  if (std::all_of(list.begin(), list.end(), is_number)) {
    std::vector<double> numbers;
    for (const Json& value : list) numbers.push_back(number(value));
    return {numbers, sizeof(double)};
  }
  if (std::all_of(list.begin(), list.end(), [](const Json& value) { return value.is_string(); }))
    return {list.get<std::vector<std::string>>()};
  return {list.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

}  // namespace

void check_inside(const FolderReach& reach, const std::string& path) {
  const auto target = reach.outside(path);
  if (target)
    throw BrokenZarr("a link leads outside the Zarr folder", "\"" + path + "\", which leads to \"" + *target + "\"",
                     FolderReach::kFix);
}

Json read_json(const std::string& path, const FolderReach& reach) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return nullptr;
    throw BrokenZarr("file \"" + path + "\": " + std::strerror(errno), "check the disk and its permissions");
  }
  check_inside(reach, path);
  const std::string name = "file \"" + path + "\"";
  if (!S_ISREG(found.st_mode) || found.st_size > kLargestFile)
    throw BrokenZarr(name + ", which is not a file of metadata");
  std::string text(static_cast<size_t>(found.st_size), '\0');
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(text.data(), found.st_size))
    throw BrokenZarr(name + ", which cannot be read", "check its permissions");
  std::string quoted;
  Json json = quote_numbers(text, quoted) ? Json::parse(quoted, nullptr, false) : Json();
  if (!json.is_object()) throw BrokenZarr(name + ", which is not a JSON object");
  return json;
}

const Json& need(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) throw BrokenZarr("metadata without \"" + std::string(key) + "\"");
  return *found;
}

std::string need_text(const Json& object, const char* key) {
  const Json& value = need(object, key);
  if (!value.is_string()) throw BrokenZarr("\"" + std::string(key) + "\" that is not a string");
  return value.get<std::string>();
}

std::vector<int64_t> need_sizes(const Json& object, const char* key, int64_t least) {
  const Json& list = need(object, key);
  std::vector<int64_t> sizes;
  bool good = list.is_array() && list.size() <= 32;
  for (size_t i = 0; good && i < list.size(); ++i) {
    good = is_whole(list[i]) && list[i].get<int64_t>() >= least && list[i].get<int64_t>() <= kLargestSize;
    if (good) sizes.push_back(list[i].get<int64_t>());
  }
  if (!good) throw BrokenZarr("\"" + std::string(key) + "\" that is not a list of at most 32 sizes");
  return sizes;
}

std::optional<double> special_number(const std::string& text) {
  const std::string name = text.starts_with(kNotANumber) ? text.substr(1) : text;
  if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (name == "Infinity") return std::numeric_limits<double>::infinity();
  if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

Catalog::AttributeMap attributes_of(const Json& object) {
  Catalog::AttributeMap attributes;
  for (const auto& [name, value] : object.items()) {
    if (value.is_boolean()) {
      attributes[name] = {value.get<bool>()};
    } else if (is_whole(value)) {
      attributes[name] = {value.get<int64_t>()};
    } else if (is_number(value)) {
      attributes[name] = {number(value), sizeof(double)};
    } else if (value.is_string()) {
      attributes[name] = {value.get<std::string>()};
    } else if (value.is_array()) {
      attributes[name] = list_attribute(value);
    } else {
      attributes[name] = {value.dump(-1, ' ', false, Json::error_handler_t::replace)};
    }
  }
  return attributes;
}

std::string from_base64(const std::string& text) {
  static const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    const size_t value = letters.find(c);
    if (value == std::string::npos) throw BrokenZarr("\"" + text + "\", which is not a base64");
    held = held << 6 | static_cast<uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits);
  }
  return bytes;
}

}  // namespace moonhalo::io
