// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/link_policy.h"

#include <c10/util/Exception.h>

#include <array>
#include <filesystem>
#include <set>

#include "moonhalo/io/formats/h5_open.h"
#include "moonhalo/io/formats/source_name.h"

namespace moonhalo::io::h5 {
namespace fs = std::filesystem;
namespace {

constexpr int kDeepest = 8;
const char* const kFetch = "\n  fix   copy it together with its sources, or make it again";
const char* const kFix = "\n  fix   if you trust the file, open it with allow_external = true";

fs::path canonical_path(const fs::path& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : found;
}

/// Property lists give strings of any length.
template <typename Get>
std::string text_of(const Where& where, Get&& get) {
  const auto size = checked(where, "read its sources", [&] { return get(nullptr, 0); });
  std::string text(static_cast<size_t>(size) + 1, '\0');
  checked(where, "read its sources", [&] { return get(text.data(), text.size()); });
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string name_of(hid_t object) {
  const Where where{"open", ""};
  return text_of(where, [&](char* out, size_t room) { return H5Fget_name(object, out, room); });
}

/// Adds the numbers of the blocks that `folder` has files of.
void add_blocks_in(const fs::path& folder, const SourceName& name, std::set<uint64_t>& blocks) {
  std::error_code ignored;
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (const auto block = name.block_of(entry->path().filename().string())) blocks.insert(*block);
  }
}

/// Files and datasets as they are stored.
std::set<std::pair<std::string, std::string>> sources_of(hid_t list, const Where& where) {
  size_t count = 0;
  checked(where, "read its sources", [&] { return H5Pget_virtual_count(list, &count); });
  std::set<std::pair<std::string, std::string>> sources;
  for (size_t i = 0; i < count; ++i) {
    sources.emplace(
        text_of(where, [&](char* out, size_t room) { return H5Pget_virtual_filename(list, i, out, room); }),
        text_of(where, [&](char* out, size_t room) { return H5Pget_virtual_dsetname(list, i, out, room); }));
  }
  return sources;
}

/// The datasets of a group that are blocks.
struct Members {
  const SourceName& name;
  std::set<uint64_t> blocks = {};

  static herr_t add(hid_t, const char* link, const H5L_info_t*, void* self) {
    auto& members = *static_cast<Members*>(self);
    if (const auto block = members.name.block_of(link)) members.blocks.insert(*block);
    return 0;
  }
};

}  // namespace

LinkPolicy::LinkPolicy(std::string path, bool allow_external)
    : path_(std::move(path)), folder_(canonical_path(path_).parent_path().string()), allow_external_(allow_external) {}

std::string LinkPolicy::refusal(const std::string& from, const std::string& target) const {
  const fs::path file = canonical_path(fs::path(from).parent_path() / target);
  const fs::path way = file.lexically_relative(folder_);
  if (!allow_external_ && (way.empty() || *way.begin() == "..")) return "outside the file's folder";
  // HDF5 would go on looking for it in the current folder.
  std::error_code ignored;
  const bool elsewhere = allow_external_ && fs::exists(target, ignored);
  return fs::exists(file, ignored) || elsewhere ? "" : "missing in the file's folder";
}

herr_t LinkPolicy::on_link(const char* file, const char* group, const char* target, const char* object, unsigned*,
                           hid_t, void* self) {
  const auto& reach = *static_cast<const LinkPolicy*>(self);
  const std::string why = reach.refusal(file, target);
  if (why.empty()) return 0;
  refuse("open: a link in group \"" + std::string(group) + "\" of file \"" + file + "\" leads " +
         (why.starts_with("missing") ? "to a file that is " : "") + why + "\n  have  target \"" + target +
         "\", object \"" + object + "\"" + kFix);
  return -1;
}

void LinkPolicy::watch(hid_t access, const Where& where) const {
  refuse("");
  checked(where, "read only what it links to", [&] { return H5Pset_elink_acc_flags(access, H5F_ACC_RDONLY); });
  if (allow_external_) return;
  checked(where, "watch its links", [&] { return H5Pset_elink_cb(access, on_link, const_cast<LinkPolicy*>(this)); });
}

struct LinkPolicy::Source {
  std::string file, name;  ///< as HDF5 opens them; "." is the file itself
  bool is_block;           ///< one of many, which may be missing
  int depth;               ///< of virtual datasets above it
};

Handle LinkPolicy::open_source(hid_t inside, const std::string& file, const std::string& name,
                               const Where& where) const {
  if (file == ".") return make(where, "find its file", H5Fclose, [&] { return H5Iget_file_id(inside); });
  const std::string from = name_of(inside);
  const std::string why = refusal(from, file);
  TORCH_CHECK_VALUE(why.empty(), where.to_string(), ": it is virtual, and a source is ", why, "\n  have  source \"",
                    file, "\", dataset \"", name, "\"", why.starts_with("missing") ? kFetch : kFix);
  std::error_code ignored;
  const fs::path beside = fs::path(from).parent_path() / file;
  return open_file(fs::exists(beside, ignored) ? beside.string() : file);
}

int LinkPolicy::check_source(hid_t inside, const Source& source, const Where& where, Heights& heights) const {
  const Handle file = open_source(inside, source.file, source.name, where);
  const Handle links = property_list(H5P_LINK_ACCESS, where);
  watch(links.get(), where);
  const bool is_there = link_exists(file.get(), source.name, links.get());
  if (!is_there && source.is_block) return 0;
  // HDF5 would read fill values.
  TORCH_CHECK_VALUE(is_there, where.to_string(), ": it is virtual, and a source has no dataset \"", source.name,
                    "\"\n  have  source file \"", source.file, "\"", kFetch);
  const Handle opened = open_dataset(file.get(), source.name, 0, this, where);
  return 1 + check_storage(opened.get(), where, source.depth + 1, heights);
}

/// HDF5 also looks for a block in the current folder and beside what a link to the file leads to. Those count as
/// outside.
std::set<uint64_t> LinkPolicy::blocks_of_files(const std::string& from, const SourceName& file,
                                               const Where& where) const {
  const auto folder = file.folder();
  TORCH_CHECK_VALUE(folder, where.to_string(),
                    ": it is virtual, and the folders of its sources have numbers\n  have  source \"", file.of(0),
                    "\" and those of other numbers", kFix);
  const fs::path beside = fs::path(from).parent_path(), target = canonical_path(from).parent_path(), below = *folder;
  using Places = std::vector<fs::path>;
  std::set<uint64_t> blocks, elsewhere;
  add_blocks_in(beside / below, file, blocks);
  for (const fs::path& place : below.is_absolute() ? Places{beside, target, ""} : Places{below, target / below})
    add_blocks_in(place, file, elsewhere);
  for (const uint64_t block : elsewhere) {
    TORCH_CHECK_VALUE(blocks.contains(block), where.to_string(),
                      ": it is virtual, and a source is outside the file's folder", "\n  have  source \"",
                      file.of(block), "\", which is missing there", kFix);
  }
  return blocks;
}

std::set<uint64_t> LinkPolicy::blocks_of_group(hid_t inside, const std::string& file, const SourceName& name,
                                               const Where& where) const {
  const auto group = name.folder();
  TORCH_CHECK_VALUE(group, where.to_string(),
                    ": it is virtual, and the groups of its sources have numbers\n  have  dataset \"", name.of(0),
                    "\" and those of other numbers", kFix);
  const std::string path = group->empty() ? "/" : *group;
  const Handle opened = open_source(inside, file, name.of(0), where), links = property_list(H5P_LINK_ACCESS, where);
  watch(links.get(), where);
  Members members{name};
  hsize_t position = 0;
  if (link_exists(opened.get(), path, links.get())) {
    checked(where, "list its sources", [&] {
      return H5Literate_by_name(opened.get(), path.c_str(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, Members::add,
                                &members, links.get());
    });
  }
  return members.blocks;
}

/// Blocks may come and go: only those that are there can show anything.
int LinkPolicy::check_blocks(hid_t inside, const std::string& file, const std::string& name, const Where& where,
                             int depth, Heights& heights) const {
  const SourceName files(file), names(name);
  if (!files.is_numbered() && !names.is_numbered())
    return check_source(inside, {files.of(0), names.of(0), false, depth}, where, heights);
  if (allow_external_) return 1;
  const std::set<uint64_t> blocks = files.is_numbered() ? blocks_of_files(name_of(inside), files, where)
                                                        : blocks_of_group(inside, files.of(0), names, where);
  int height = 1;
  for (const uint64_t block : blocks)
    height = std::max(height, check_source(inside, {files.of(block), names.of(block), true, depth}, where, heights));
  return height;
}

int LinkPolicy::check_storage(hid_t dataset, const Where& where, int depth, Heights& heights) const {
  H5O_info_t info;
  checked(where, "look at it", [&] { return H5Oget_info2(dataset, &info, H5O_INFO_BASIC); });
  const Place place{canonical_path(name_of(dataset)).string(), info.addr};
  const auto [known, is_new] = heights.emplace(place, kDeepest);  // which a circle comes upon
  const auto check_depth = [&](int height) {
    TORCH_CHECK_VALUE(depth + height < kDeepest, where.to_string(),
                      ": it is virtual, of sources that are virtual, more than ", kDeepest,
                      " deep\n  have  a file that may lead in a circle", kFix);
  };
  check_depth(is_new ? 0 : known->second);
  if (!is_new) return known->second;
  const Handle list = creation_list_of(dataset, where);
  const int raw = checked(where, "read its storage", [&] { return H5Pget_external_count(list.get()); });
  if (raw > 0 && !allow_external_) {
    std::array<char, 256> name{};
    off_t offset = 0;
    hsize_t size = 0;
    checked(where, "read its storage",
            [&] { return H5Pget_external(list.get(), 0, name.size() - 1, name.data(), &offset, &size); });
    TORCH_CHECK_VALUE(false, where.to_string(),
                      ": its elements are the bytes of another file\n  have  external raw storage \"", name.data(),
                      "\"", kFix);
  }
  int height = 0;
  if (checked(where, "read its layout", [&] { return H5Pget_layout(list.get()); }) == H5D_VIRTUAL) {
    const Handle inside = make(where, "find its file", H5Fclose, [&] { return H5Iget_file_id(dataset); });
    for (const auto& [file, name] : sources_of(list.get(), where))
      height = std::max(height, check_blocks(inside.get(), file, name, where, depth, heights));
  }
  return known->second = height;
}

Handle open_dataset(hid_t file, const std::string& name, size_t cache_bytes, const LinkPolicy* reach,
                    const Where& where) {
  const Handle access = property_list(H5P_DATASET_ACCESS, where);
  if (reach) reach->watch(access.get(), where);
  if (cache_bytes > 0) {
    // A hash table with far more slots than chunks keeps chunks from evicting each other; 12421 is
    // prime.
    checked(where, "size the chunk cache",
            [&] { return H5Pset_chunk_cache(access.get(), 12421, cache_bytes, H5D_CHUNK_CACHE_W0_DEFAULT); });
  }
  return make(where, "open it", H5Dclose, [&] { return H5Dopen2(file, name.c_str(), access.get()); });
}

}  // namespace moonhalo::io::h5
