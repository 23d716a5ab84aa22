// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/zarr.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

#include "moonhalo/io/formats/zarr_array.h"

namespace moonhalo::io {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepestGroup = 16;
constexpr size_t kMostNodes = 100000;

class Walk {
 public:
  explicit Walk(const std::string& path) : root_(path), catalog_(std::make_unique<Catalog>()) {}

  std::unique_ptr<Catalog> run() {
    const Json node = read_json(root_ + "/zarr.json");
    catalog_->format = node.is_null() ? "Zarr 2" : "Zarr 3";
    catalog_->groups[""];
    const bool is_array = node.is_null() ? fs::exists(root_ + "/.zarray") : need_text(node, "node_type") == "array";
    if (is_array) {
      add_array(root_, own_name());
      return std::move(catalog_);
    }
    add_group(root_, "", 0);
    add_missing(node);
    return std::move(catalog_);
  }

 private:
  std::string own_name() const {
    fs::path path = fs::absolute(root_).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    return path.stem().string();
  }

  static Json attributes(const std::string& folder) {
    Json attributes = read_json(folder + "/.zattrs");
    return attributes.is_null() ? Json::object() : attributes;
  }

  void add_array(const std::string& folder, const std::string& path) {
    const Json node = read_json(folder + "/zarr.json");
    if (!node.is_null()) {
      check_version(node, 3);
      catalog_->arrays[path] = read_zarr3_array(folder, path, node);
      return;
    }
    const Json array = read_json(folder + "/.zarray");
    check_version(array, 2);
    catalog_->arrays[path] = read_zarr2_array(folder, path, array, attributes(folder));
  }

  static void check_version(const Json& node, int version) {
    const Json& found = need(node, "zarr_format");
    if (found != version)
      throw BrokenZarr("zarr_format " + found.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40),
                       "write it as Zarr 2 or 3");
  }

  void add_group(const std::string& folder, const std::string& path, int depth) {
    const Json node = read_json(folder + "/zarr.json");
    if (!node.is_null()) check_version(node, 3);
    const Json attributes_here = node.is_null() ? attributes(folder) : node.value("attributes", Json::object());
    if (!attributes_here.is_object()) throw BrokenZarr("attributes that are no object");
    catalog_->groups[path] = attributes_of(attributes_here);
    if (depth == kDeepestGroup) return;
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      std::error_code ignored;
      if (entry->is_directory(ignored)) names.push_back(entry->path().filename().string());
    }
    if (error)
      throw BrokenZarr("folder \"" + folder + "\" that cannot be listed: " + error.message(),
                       "check the disk and its permissions");
    std::sort(names.begin(), names.end());
    for (const std::string& name : names)
      add_member(folder + "/" + name, path.empty() ? name : path + "/" + name, depth + 1);
  }

  /// Folders without metadata of Zarr are none of its members.
  void add_member(const std::string& folder, const std::string& path, int depth) {
    if (++nodes_ > kMostNodes) throw BrokenZarr("more than " + std::to_string(kMostNodes) + " folders");
    try {
      const Json node = read_json(folder + "/zarr.json");
      if (node.is_null() ? fs::exists(folder + "/.zarray") : need_text(node, "node_type") == "array") {
        add_array(folder, path);
      } else if (!node.is_null() || fs::exists(folder + "/.zgroup")) {
        add_group(folder, path, depth);
      }
    } catch (const BrokenZarr& error) {
      catalog_->arrays.erase(path);
      catalog_->broken[path] = error.what();
    } catch (const Json::exception& error) {
      catalog_->arrays.erase(path);
      catalog_->broken[path] = BrokenZarr(error.what()).what();
    }
  }

  /// Arrays that consolidated metadata promise.
  void add_missing(const Json& node) {
    const bool version3 = !node.is_null();
    const Json from = version3 ? node.value("consolidated_metadata", Json()) : read_json(root_ + "/.zmetadata");
    const auto members = from.is_object() ? from.find("metadata") : from.end();
    if (!from.is_object() || members == from.end() || !members->is_object()) return;
    const std::string ending = "/.zarray";
    for (const auto& [key, member] : members->items()) {
      std::string path = key;
      if (version3) {
        if (!member.is_object() || member.value("node_type", Json()) != "array") continue;
      } else {
        if (!path.ends_with(ending)) continue;
        path.resize(path.size() - ending.size());
      }
      const bool known = catalog_->find(path) || catalog_->broken.contains(path);
      if (!known && !path.empty())
        catalog_->broken[path] = BrokenZarr("consolidated metadata that name it, and no folder of it").what();
    }
  }

  const std::string root_;
  std::unique_ptr<Catalog> catalog_;
  size_t nodes_ = 0;
};

}  // namespace

bool is_zarr(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return false;
  for (const char* name : {"zarr.json", ".zgroup", ".zarray", ".zmetadata"}) {
    if (fs::exists(path + "/" + name, ignored)) return true;
  }
  return false;
}

std::unique_ptr<Catalog> read_zarr(const std::string& path) {
  try {
    return Walk(path).run();
  } catch (const BrokenZarr& error) {
    TORCH_CHECK_VALUE(false, "open: Zarr folder \"", path, "\": ", error.what());
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, "open: Zarr folder \"", path, "\": ", BrokenZarr(error.what()).what());
  }
}

}  // namespace moonhalo::io
