// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/catalog.h"

#include <algorithm>

namespace moonhalo::io {
namespace {

/// The name of `path` in `group` if it is directly in it.
std::optional<std::string> name_in(const std::string& group, const std::string& path) {
  const std::string prefix = group.empty() ? "" : group + "/";
  if (path.size() <= prefix.size() || !path.starts_with(prefix)) return std::nullopt;
  std::string name = path.substr(prefix.size());
  if (name.find('/') != std::string::npos) return std::nullopt;
  return name;
}

}  // namespace

const Catalog::Array* Catalog::find(const std::string& path) const {
  const auto found = arrays.find(path);
  return found == arrays.end() ? nullptr : &found->second;
}

const Catalog::AttributeMap* Catalog::attributes(const std::string& path) const {
  if (const Array* array = find(path)) return &array->attrs;
  const auto group = groups.find(path);
  return group == groups.end() ? nullptr : &group->second;
}

std::vector<std::string> Catalog::members(const std::string& group) const {
  std::vector<std::string> names;
  const auto add = [&](const auto& paths) {
    for (const auto& entry : paths) {
      if (auto name = name_in(group, entry.first)) names.push_back(std::move(*name));
    }
  };
  add(groups);
  add(arrays);
  add(broken);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Catalog::paths() const {
  std::vector<std::string> found;
  for (const auto& entry : arrays) found.push_back(entry.first);
  for (const auto& entry : broken) found.push_back(entry.first);
  std::sort(found.begin(), found.end());
  return found;
}

Attributes plain(const Catalog::AttributeMap& attributes) {
  Attributes result;
  for (const auto& [name, attribute] : attributes) result.emplace(name, attribute.value);
  return result;
}

}  // namespace moonhalo::io
