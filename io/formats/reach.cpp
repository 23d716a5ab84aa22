// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/reach.h"

#include <c10/util/Exception.h>

#include <array>
#include <filesystem>
#include <set>

#include "moonhalo/io/formats/h5_open.h"

namespace moonhalo::io::h5 {
namespace fs = std::filesystem;
namespace {

constexpr int kDeepest = 8;
const char* const kFetch = "\n  fix   copy it together with its sources, or make it anew";
const char* const kFix = "\n  fix   if you trust the file, open it with allow_external = true";

fs::path canonical_path(const fs::path& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? path : found;
}

/// Property lists give texts of any length.
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

}  // namespace

Reach::Reach(std::string path, bool allow_external)
    : path_(std::move(path)), folder_(canonical_path(path_).parent_path().string()), allow_external_(allow_external) {}

std::string Reach::refusal(const std::string& from, const std::string& target) const {
  const fs::path file = canonical_path(fs::path(from).parent_path() / target);
  const fs::path way = file.lexically_relative(folder_);
  if (!allow_external_ && (way.empty() || *way.begin() == "..")) return "outside the file's folder";
  // HDF5 would go on looking for it in the current folder. A pattern of names ("part-%b.h5") has no one file.
  std::error_code ignored;
  const bool elsewhere = allow_external_ && fs::exists(target, ignored);
  if (target.find('%') == std::string::npos && !fs::exists(file, ignored) && !elsewhere)
    return "missing in the file's folder";
  return "";
}

herr_t Reach::on_link(const char* file, const char* group, const char* target, const char* object, unsigned*, hid_t,
                      void* self) {
  const auto& reach = *static_cast<const Reach*>(self);
  const std::string why = reach.refusal(file, target);
  if (why.empty()) return 0;
  refuse("open: a link in group \"" + std::string(group) + "\" of file \"" + file + "\" leads " +
         (why.starts_with("missing") ? "to a file that is " : "") + why + "\n  have  target \"" + target +
         "\", object \"" + object + "\"" + kFix);
  return -1;
}

void Reach::watch(hid_t access, const Where& where) const {
  refuse("");
  checked(where, "read only what it links to", [&] { return H5Pset_elink_acc_flags(access, H5F_ACC_RDONLY); });
  if (allow_external_) return;
  checked(where, "watch its links", [&] { return H5Pset_elink_cb(access, on_link, const_cast<Reach*>(this)); });
}

void Reach::check_source(hid_t dataset, const std::string& file, const std::string& name, const Where& where,
                         int depth) const {
  const Handle inside = make(where, "find its file", H5Fclose, [&] { return H5Iget_file_id(dataset); });
  Handle other;
  if (file != ".") {
    const std::string from = name_of(inside.get());
    const std::string why = refusal(from, file);
    TORCH_CHECK_VALUE(why.empty(), where.to_string(), ": it is virtual, and a source is ", why, "\n  have  source \"", file,
                      "\", dataset \"", name, "\"", why.starts_with("missing") ? kFetch : kFix);
    if (file.find('%') != std::string::npos) return;
    std::error_code ignored;
    const fs::path beside = fs::path(from).parent_path() / file;
    other = open_file(fs::exists(beside, ignored) ? beside.string() : file);
  }
  const hid_t source = file == "." ? inside.get() : other.get();
  const Handle links = property_list(H5P_LINK_ACCESS, where);
  watch(links.get(), where);
  if (name.find('%') != std::string::npos) return;
  // HDF5 would read fill values.
  TORCH_CHECK_VALUE(link_exists(source, name, links.get()), where.to_string(), ": it is virtual, and a source has no dataset \"", name,
                    "\"\n  have  source file \"", file, "\"", kFetch);
  check_storage(open_dataset(source, name, 0, this, where).get(), where, depth + 1);
}

void Reach::check_storage(hid_t dataset, const Where& where, int depth) const {
  TORCH_CHECK_VALUE(depth < kDeepest, where.to_string(), ": it is virtual, of sources that are virtual, more than ", kDeepest,
                    " deep\n  have  a file that may lead in a circle", kFix);
  const Handle list = creation_list_of(dataset, where);
  const int raw = checked(where, "read its storage", [&] { return H5Pget_external_count(list.get()); });
  if (raw > 0 && !allow_external_) {
    std::array<char, 256> name{};
    off_t offset = 0;
    hsize_t size = 0;
    checked(where, "read its storage",
            [&] { return H5Pget_external(list.get(), 0, name.size() - 1, name.data(), &offset, &size); });
    TORCH_CHECK_VALUE(false, where.to_string(), ": its elements are the bytes of another file\n  have  external raw storage \"",
                      name.data(), "\"", kFix);
  }
  if (checked(where, "read its layout", [&] { return H5Pget_layout(list.get()); }) != H5D_VIRTUAL) return;
  size_t count = 0;
  checked(where, "read its sources", [&] { return H5Pget_virtual_count(list.get(), &count); });
  std::set<std::pair<std::string, std::string>> sources;
  for (size_t i = 0; i < count; ++i) {
    sources.emplace(
        text_of(where, [&](char* out, size_t room) { return H5Pget_virtual_filename(list.get(), i, out, room); }),
        text_of(where, [&](char* out, size_t room) { return H5Pget_virtual_dsetname(list.get(), i, out, room); }));
  }
  for (const auto& [file, name] : sources) check_source(dataset, file, name, where, depth);
}

Handle open_dataset(hid_t file, const std::string& name, size_t cache_bytes, const Reach* reach, const Where& where) {
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
