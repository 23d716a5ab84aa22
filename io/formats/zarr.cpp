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
  Walk(const std::string& path, bool allow_external)
      : root_(path),
        reach_(std::make_shared<FolderReach>(path, allow_external)),
        catalog_(std::make_unique<Catalog>()) {}

  std::unique_ptr<Catalog> run() {
    const Json node = read_json(root_ + "/zarr.json");
    catalog_->format = node.is_null() ? "Zarr 2" : "Zarr 3";
    catalog_->groups[""];
    const bool is_array = node.is_null() ? fs::exists(root_ + "/.zarray") : need_text(node, "node_type") == "array";
    if (is_array) {
      add_array(root_, own_name());
      return std::move(catalog_);
    }
    add_group({root_, reach_->real_folder(), "", 0});
    for (size_t i = 0; i < links_.size(); ++i) add_link(links_[i]);  // which may find others
    add_missing(node);
    return std::move(catalog_);
  }

 private:
  std::string own_name() const {
    fs::path path = fs::absolute(root_).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    return path.stem().string();
  }

  struct Place {
    std::string folder, real_folder, path;
    int depth;
  };

  Json read_json(const std::string& path) const { return io::read_json(path, *reach_); }

  Json attributes(const std::string& folder) const {
    Json attributes = read_json(folder + "/.zattrs");
    return attributes.is_null() ? Json::object() : attributes;
  }

  void add_array(const std::string& folder, const std::string& path) {
    const Json node = read_json(folder + "/zarr.json");
    if (!node.is_null()) {
      check_version(node, 3);
      catalog_->arrays[path] = read_zarr3_array({folder, reach_, path}, node);
      return;
    }
    const Json array = read_json(folder + "/.zarray");
    check_version(array, 2);
    catalog_->arrays[path] = read_zarr2_array({folder, reach_, path}, array, attributes(folder));
  }

  static void check_version(const Json& node, int version) {
    const Json& found = need(node, "zarr_format");
    if (found != version)
      throw BrokenZarr("zarr_format " + found.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40),
                       "write it as Zarr 2 or 3");
  }

  /// Leaves links to folders for later: a group is best known by the name of its folder.
  void add_group(const Place& place) {
    const auto& [folder, real_folder, path, depth] = place;
    group_at_[real_folder] = path;
    const Json node = read_json(folder + "/zarr.json");
    if (!node.is_null()) check_version(node, 3);
    const Json attributes_here = node.is_null() ? attributes(folder) : node.value("attributes", Json::object());
    if (!attributes_here.is_object()) throw BrokenZarr("attributes that are not a object");
    catalog_->groups[path] = attributes_of(attributes_here);
    if (depth == kDeepestGroup) return;
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      std::error_code ignored;
      if (!entry->is_directory(ignored)) continue;
      const std::string name = entry->path().filename().string();
      if (entry->is_symlink(ignored)) {
        links_.push_back(member_of(place, name));
      } else {
        names.push_back(name);
      }
    }
    if (error)
      throw BrokenZarr("folder \"" + folder + "\" that cannot be listed: " + error.message(),
                       "check the disk and its permissions");
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) add_member(member_of(place, name));
  }

  static Place member_of(const Place& group, const std::string& name) {
    return {group.folder + "/" + name, group.real_folder + "/" + name,
            group.path.empty() ? name : group.path + "/" + name, group.depth + 1};
  }

  /// A group that is there twice might be so any number of times, in itself too.
  void add_link(Place link) {
    if (!is_zarr(link.folder)) return;
    std::error_code error;
    link.real_folder = fs::canonical(link.folder, error).string();
    try {
      check_inside(*reach_, link.folder);
      const auto known = group_at_.find(link.real_folder);
      if (known != group_at_.end())
        throw BrokenZarr("a link to a group that has another name, too",
                         "\"" + link.folder + "\", which leads to the group \"/" + known->second + "\"",
                         "use that name, or a copy in place of the link");
    } catch (const BrokenZarr& refusal) {
      catalog_->broken[link.path] = refusal.what();
      return;
    }
    add_member(link);
  }

  /// Folders without metadata of Zarr are none of its members.
  void add_member(const Place& place) {
    const auto& [folder, real_folder, path, depth] = place;
    if (++nodes_ > kMostNodes) throw BrokenZarr("more than " + std::to_string(kMostNodes) + " folders");
    try {
      const Json node = read_json(folder + "/zarr.json");
      if (node.is_null() ? fs::exists(folder + "/.zarray") : need_text(node, "node_type") == "array") {
        add_array(folder, path);
      } else if (!node.is_null() || fs::exists(folder + "/.zgroup")) {
        add_group(place);
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
  const std::shared_ptr<const FolderReach> reach_;
  std::unique_ptr<Catalog> catalog_;
  std::vector<Place> links_;                     // to folders
  std::map<std::string, std::string> group_at_;  // paths of the groups that were read, by real folders
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

std::unique_ptr<Catalog> read_zarr(const std::string& path, bool allow_external) {
  try {
    return Walk(path, allow_external).run();
  } catch (const BrokenZarr& error) {
    TORCH_CHECK_VALUE(false, "open: Zarr folder \"", path, "\": ", error.what());
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, "open: Zarr folder \"", path, "\": ", BrokenZarr(error.what()).what());
  }
}

}  // namespace moonhalo::io
