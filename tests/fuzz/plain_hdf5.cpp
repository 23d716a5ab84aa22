// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/plain_hdf5.h"

#include <hdf5.h>

#include <algorithm>
#include <string>
#include <vector>

namespace moonhalo::testing {
namespace {

void read_attribute(hid_t object, hsize_t index) {
  const hid_t attribute = H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_NATIVE, index, H5P_DEFAULT, H5P_DEFAULT);
  if (attribute < 0) return;
  const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
  const hssize_t count = H5Sget_simple_extent_npoints(space);
  constexpr hssize_t kMost = 1 << 20;
  if (count > 0 && count < kMost && H5Tget_size(type) < kMost) {
    std::vector<char> values(static_cast<size_t>(count) * std::max<size_t>(H5Tget_size(type), 1));
    H5Aread(attribute, type, values.data());  // lists that it allocates live as long as this process
  }
  H5Sclose(space);
  H5Tclose(type);
  H5Aclose(attribute);
}

void read_attributes(hid_t file, const std::string& name) {
  const hid_t object = H5Oopen(file, name.c_str(), H5P_DEFAULT);
  if (object < 0) return;
  const int count = H5Aget_num_attrs(object);
  for (int i = 0; i < count; ++i) read_attribute(object, static_cast<hsize_t>(i));
  H5Oclose(object);
}

herr_t add_name(hid_t, const char* name, const H5L_info_t*, void* names) {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

void read_group(hid_t file, const std::string& group, int depth) {
  read_attributes(file, group);
  std::vector<std::string> names;
  hsize_t position = 0;
  H5Literate_by_name(file, group.c_str(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, add_name, &names, H5P_DEFAULT);
  constexpr int kDeepest = 4;
  for (const std::string& name : names) {
    if (depth < kDeepest) read_group(file, group + name + "/", depth + 1);
  }
}

}  // namespace

void read_attributes_plainly(const std::string& path) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) return;
  read_group(file, "/", 0);
  H5Fclose(file);
}

}  // namespace moonhalo::testing
