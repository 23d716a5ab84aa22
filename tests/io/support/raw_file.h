// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing {

inline at::Tensor field(at::IntArrayRef shape, int64_t seed = 5) { return make_tensor(shape, seed, at::kFloat); }

/// Makes HDF5 files as other programs do, with the C API and nothing of Moonhalo.
class RawFile {
 public:
  struct Layout {
    std::vector<hsize_t> chunks = {};
    int gzip = 0;
    bool checksum = false, compact = false;
  };

  /// `latest`: in the newest format, whose metadata have checksums.
  explicit RawFile(const std::string& path, hsize_t userblock = 0, bool latest = false) {
    const hid_t list = H5Pcreate(H5P_FILE_CREATE), access = H5Pcreate(H5P_FILE_ACCESS);
    if (userblock > 0) H5Pset_userblock(list, userblock);
    if (latest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    file_ = good(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, list, access));
    H5Pclose(list);
    H5Pclose(access);
  }
  ~RawFile() { H5Fclose(file_); }
  hid_t id() const { return file_; }

  /// Writes `data` (memory type `memory`) as a dataset of type `stored`.
  void dataset(const std::string& name, hid_t stored, hid_t memory, const std::vector<hsize_t>& shape, const void* data,
               const Layout& layout) {
    const hid_t space =
        shape.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    if (!layout.chunks.empty()) {
      good(H5Pset_chunk(list, static_cast<int>(layout.chunks.size()), layout.chunks.data()));
    }
    if (layout.compact) good(H5Pset_layout(list, H5D_COMPACT));
    if (layout.checksum) good(H5Pset_fletcher32(list));
    if (layout.gzip > 0) good(H5Pset_deflate(list, static_cast<unsigned>(layout.gzip)));
    const hid_t id = good(H5Dcreate2(file_, name.c_str(), stored, space, H5P_DEFAULT, list, H5P_DEFAULT));
    if (data) good(H5Dwrite(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data));
    H5Dclose(id);
    H5Pclose(list);
    H5Sclose(space);
  }
  void dataset(const std::string& name, hid_t stored, hid_t memory, const std::vector<hsize_t>& shape,
               const void* data) {
    dataset(name, stored, memory, shape, data, Layout());
  }
  void floats(const std::string& name, const at::Tensor& values) { floats(name, values, Layout()); }
  void floats(const std::string& name, const at::Tensor& values, const Layout& layout, hid_t stored = H5T_IEEE_F32LE) {
    const at::Tensor data = values.to(at::kFloat).contiguous();
    dataset(name, stored, H5T_NATIVE_FLOAT, {data.sizes().begin(), data.sizes().end()}, data.const_data_ptr(), layout);
  }

  template <typename T>
  void number(const std::string& object, const std::string& name, hid_t stored, hid_t memory,
              const std::vector<T>& values) {
    const hsize_t count = values.size();
    const hid_t space = count == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr);
    attribute(object, name, stored, memory, space, values.data());
  }
  void text(const std::string& object, const std::string& name, const std::string& value) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, value.size());
    attribute(object, name, type, type, H5Screate(H5S_SCALAR), value.c_str());
    H5Tclose(type);
  }

  /// Marks datasets as NetCDF-4 dimension scales and hangs them on a dataset.
  void scales(const std::string& dataset, const std::vector<std::string>& names) {
    const hid_t type = H5Tvlen_create(H5T_STD_REF_OBJ);
    std::vector<hobj_ref_t> references(names.size());
    std::vector<hvl_t> lists(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      text(names[i], "CLASS", "DIMENSION_SCALE");
      good(H5Rcreate(&references[i], file_, names[i].c_str(), H5R_OBJECT, -1));
      lists[i] = {1, &references[i]};
    }
    const hsize_t count = names.size();
    attribute(dataset, "DIMENSION_LIST", type, type, H5Screate_simple(1, &count, nullptr), lists.data());
    H5Tclose(type);
  }

 private:
  template <typename T>
  static T good(T status) {
    if (status < 0) throw std::runtime_error("the test could not make its file");
    return status;
  }
  void attribute(const std::string& object, const std::string& name, hid_t stored, hid_t memory, hid_t space,
                 const void* data) {
    const hid_t owner = good(H5Oopen(file_, object.c_str(), H5P_DEFAULT));
    const hid_t id = good(H5Acreate2(owner, name.c_str(), stored, space, H5P_DEFAULT, H5P_DEFAULT));
    good(H5Awrite(id, memory, data));
    H5Aclose(id);
    H5Oclose(owner);
    H5Sclose(space);
  }

  hid_t file_;
};

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace moonhalo::testing
