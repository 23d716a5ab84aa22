// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/base/h5.h"
#include "moonhalo/io/fields/domain_file.h"

namespace moonhalo::io {

/// A new dataset takes over from the one that it is like: names of dims, attributes that describe the quantity, and
/// coordinates of the selected rows.
struct DatasetTemplate {
  struct Coordinates {
    std::string name;
    at::Tensor values;
    Attributes attrs;
  };
  std::vector<std::string> dims;
  Attributes attrs;  ///< without those of packing and missing values, and those that name other variables
  std::vector<Coordinates> coordinates;
};

/// Reads it for a tensor of `shape`. `grows`: the first dim has other rows than the source, and no coordinates.
/// ValueError where the source has no named dims, or another shape.
DatasetTemplate read_dataset_template(const Selection& source, at::IntArrayRef shape, bool grows,
                                      const h5::Where& where);
/// Those options with what they leave open taken from the likeness.
WriteOptions completed(WriteOptions options, const DatasetTemplate& likeness);

}  // namespace moonhalo::io
