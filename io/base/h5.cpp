// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/h5.h"

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <vector>

namespace moonhalo::io::h5 {
namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

bool library_is_threadsafe() {
  static const bool safe = [] {
    hbool_t value = 0;
    return H5is_library_threadsafe(&value) >= 0 && value;
  }();
  return safe;
}

/// "file write failed: File too large" for HDF5's six lines about the same.
std::string in_short(const std::string& text) {
  const std::string sign = "error message = '";
  const size_t reason = text.find(sign);
  if (reason == std::string::npos) return text;
  const size_t begin = reason + sign.size();
  return text.substr(0, text.find_first_of(":,")) + ": " + text.substr(begin, text.find('\'', begin) - begin);
}

herr_t collect(unsigned, const H5E_error2_t* error, void* data) {
  auto& lines = *static_cast<std::vector<std::string>*>(data);
  const std::string text = in_short(error->desc ? error->desc : "");
  const bool known = std::find(lines.begin(), lines.end(), text) != lines.end();
  if (!text.empty() && !known) lines.push_back(text);
  return 0;
}

thread_local std::string refusal;
thread_local int scopes = 0;  // that live on this thread

}  // namespace

std::string Where::to_string() const {
  return op + ": " + (object.empty() ? "" : object + " of ") + "file \"" + file + "\"";
}

Scope::Scope() {
  if (!library_is_threadsafe()) lock_ = std::unique_lock(library_mutex());
  if (scopes++ > 0) return;
  H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Scope::~Scope() {
  if (--scopes == 0) H5Eset_auto2(H5E_DEFAULT, print_, data_);
}

std::string failure_text() {
  std::vector<std::string> lines;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &lines);
  if (lines.empty()) return "HDF5 gave no reason";
  // The beginning and the end of a long text say most.
  if (lines.size() > 5) lines.erase(lines.begin() + 3, lines.end() - 1);
  return c10::Join("; ", lines);
}

std::string remedy(const std::string& said) {
  const std::array<std::pair<const char*, const char*>, 6> known = {{
      {"lock file",
       "close the other program that has the file open; on a file system without locks set "
       "HDF5_USE_FILE_LOCKING=FALSE"},
      {"superblock version", "the file needs a newer HDF5 (write it again with h5py's libver='v110') or is damaged"},
      {"bad version number", "the file needs a newer HDF5 (write it again with h5py's libver='v110') or is damaged"},
      {"Fletcher32", "it is damaged: take another copy of the file, or write it again"},
      {"global heap", "it is damaged: take another copy of the file, or write it again"},
      {"not registered", "the library lacks that filter: write the dataset again with gzip, or set HDF5_PLUGIN_PATH"},
  }};
  for (const auto& [sign, text] : known) {
    if (said.find(sign) != std::string::npos) return text;
  }
  return "check the file with h5dump or `moonhalo inspect`; copy it again if it is damaged";
}

void refuse(std::string message) { refusal = std::move(message); }

void throw_refusal() {
  const std::string message = std::exchange(refusal, "");
  TORCH_CHECK_VALUE(message.empty(), message);
}

void fail(const Where& where, const std::string& what) {
  throw_refusal();
  const std::string said = failure_text();
  TORCH_CHECK(false, where.to_string(), ": cannot ", what, "\n  have  ", said, "\n  fix   ", remedy(said));
}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    reset();
    id_ = std::exchange(other.id_, H5I_INVALID_HID);
    closer_ = other.closer_;
  }
  return *this;
}

void Handle::close(const Where& where) {
  if (id_ < 0) return;
  const hid_t id = std::exchange(id_, H5I_INVALID_HID);
  checked(where, "close", [&] { return closer_(id); });
}

void Handle::reset() noexcept {
  if (id_ < 0) return;
  const Scope scope;
  closer_(std::exchange(id_, H5I_INVALID_HID));
}

Handle property_list(hid_t kind, const Where& where) {
  return make(where, "make a property list", H5Pclose, [&] { return H5Pcreate(kind); });
}

namespace {

constexpr unsigned kOrdered = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;

/// Makes a property list of a kind that keeps attributes in their order.
Handle ordered_list(hid_t kind, const Where& where) {
  Handle list = property_list(kind, where);
  checked(where, "keep the order of attributes", [&] { return H5Pset_attr_creation_order(list.get(), kOrdered); });
  // The same calls give the same bytes, at any time.
  checked(where, "leave out times", [&] { return H5Pset_obj_track_times(list.get(), false); });
  return list;
}

Handle ordered_group(hid_t kind, const Where& where) {
  Handle list = ordered_list(kind, where);
  checked(where, "keep the order of members", [&] { return H5Pset_link_creation_order(list.get(), kOrdered); });
  return list;
}

}  // namespace

Handle open_file_for_writing(const std::string& path, const Handle& access, const Where& where) {
  return make(where, "open it for writing", H5Fclose,
              [&] { return H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()); });
}

Handle create_file(const std::string& path, const Handle& access, const Where& where) {
  const Handle list = ordered_group(H5P_FILE_CREATE, where);
  return make(where, "create it", H5Fclose,
              [&] { return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, list.get(), access.get()); });
}

Handle new_dataset_list(const Where& where) { return ordered_list(H5P_DATASET_CREATE, where); }

Handle new_group_list(const Where& where) { return ordered_group(H5P_GROUP_CREATE, where); }

Handle type_of(hid_t dataset, const Where& where) {
  return make(where, "read its type", H5Tclose, [&] { return H5Dget_type(dataset); });
}

Handle space_of(hid_t dataset, const Where& where) {
  return make(where, "read its shape", H5Sclose, [&] { return H5Dget_space(dataset); });
}

Handle creation_list_of(hid_t dataset, const Where& where) {
  return make(where, "read its layout", H5Pclose, [&] { return H5Dget_create_plist(dataset); });
}

Handle simple_space(const std::vector<hsize_t>& shape, const Where& where, const std::vector<hsize_t>& most) {
  return make(where, "describe the shape", H5Sclose, [&] {
    return shape.empty()
               ? H5Screate(H5S_SCALAR)
               : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), most.empty() ? nullptr : most.data());
  });
}

std::vector<hsize_t> extent(hid_t space, const Where& where) {
  const int rank = checked(where, "read its shape", [&] { return H5Sget_simple_extent_ndims(space); });
  std::vector<hsize_t> shape(static_cast<size_t>(rank));
  if (rank > 0) {
    checked(where, "read its shape", [&] { return H5Sget_simple_extent_dims(space, shape.data(), nullptr); });
  }
  return shape;
}

bool is_in_file(hid_t file, hid_t object, const Where& where) {
  H5O_info_t info[2];
  const hid_t ids[2] = {file, object};
  for (int i = 0; i < 2; ++i) {
    checked(where, "find the file it is in", [&] { return H5Oget_info2(ids[i], &info[i], H5O_INFO_BASIC); });
  }
  return info[0].fileno == info[1].fileno;
}

bool link_exists(hid_t file, const std::string& path, hid_t links) {
  const Scope scope;
  for (size_t begin = 0, end = 0; begin < path.size(); begin = end + 1) {
    end = std::min(path.find('/', begin), path.size());
    if (end == begin) continue;
    const std::string so_far = "/" + path.substr(0, end);
    // Negative where the part before is not a group; a soft or external link may lead nowhere.
    if (H5Lexists(file, so_far.c_str(), links) > 0 && H5Oexists_by_name(file, so_far.c_str(), links) > 0) continue;
    throw_refusal();
    return false;
  }
  return true;
}

}  // namespace moonhalo::io::h5
