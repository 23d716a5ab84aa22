// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>
#include <utility>
#include <vector>

#include "moonhalo/io/formats/file_state.h"

namespace moonhalo::io {

/// The dimensions of one dataset that is about to be made, as NetCDF-4 keeps them in HDF5: a dimension is a 1-D dataset
/// (a dimension scale) that other datasets refer to. It holds the coordinates, or nothing while there are none:
///
///     write("t2m", x, dims = {"time", "y"})     time: no values yet      y: no values yet     t2m -> time, y
///     write("time", hours, dims = {"time"})     time takes the place of the one without values
///
/// A dimension is looked for in the dataset's group, then in those around it; where there is none it is made.
class NewScales {
 public:
  /// Checks, and changes nothing. ValueError: a name twice, or of the dataset itself unless that is 1-D; a dimension of
  /// another length, or of a fixed one where the dataset `grows`.
  NewScales(const FileState::Access& file, std::string name, at::IntArrayRef shape, std::vector<std::string> dims,
            bool grows, const h5::Where& where);
  /// True if only a dimension without values stands under the dataset's name.
  bool takes_place() const { return takes_place_; }
  /// Before a dataset of that name is removed: remembers what refers to it, and ends that.
  void detach();
  void attach(hid_t dataset) const;

 private:
  bool is_coordinate() const;
  void check(size_t dim) const;
  h5::Handle open(const std::string& path) const;
  h5::Handle dataset_there() const;
  h5::Handle scale_of(size_t dim) const;

  const FileState::Access& file_;
  const std::string name_, group_;
  const std::vector<int64_t> shape_;
  const std::vector<std::string> dims_;
  const bool grows_;
  const h5::Where& where_;
  bool takes_place_ = false;
  std::vector<std::pair<std::string, unsigned>> users_;  // paths and dims of what referred to this dataset
};

/// The path of a dimension of a dataset, in its group or one around it; "" where it has to be made.
std::string find_dimension(const FileState::Access& file, const std::string& dataset, const std::string& dim);
/// The dimension without values that a dataset grows along grows with it.
void grow_scale(hid_t dataset, hsize_t rows, const h5::Where& where);
/// True for a dimension without values.
bool is_bare_dimension(hid_t dataset, const h5::Where& where);

}  // namespace moonhalo::io
