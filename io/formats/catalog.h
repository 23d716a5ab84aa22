// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/base/file_descriptor.h"
#include "moonhalo/io/formats/attributes.h"
#include "moonhalo/io/formats/dataset_info.h"

namespace moonhalo::io {

/// The head of a file that is not HDF5, as a value: it has all names, shapes, attributes, and where elements are.
struct Catalog {
  struct Attribute {
    AttributeValue value;
    size_t float_bytes = 0;  ///< of one floating-point number, which AttributeValue forgets; 0: there is none
  };
  using AttributeMap = std::map<std::string, Attribute>;
  struct Array {
    std::shared_ptr<const DatasetInfo> info;
    std::vector<std::string> dims;  ///< one for each dim, "" for one without a name
    AttributeMap attrs = {};
  };

  std::string format;                          ///< for people: "NetCDF-3 (64-bit offsets)"
  std::map<std::string, AttributeMap> groups;  ///< by path, "" is the whole file
  std::map<std::string, Array> arrays;         ///< by path
  std::map<std::string, std::string> broken;   ///< paths that are named and cannot be opened, and why: what, have, fix
  FileDescriptor file;                         ///< that arrays with an offset are in
  bool has_default_fills = false;  ///< NetCDF: values that were never written are recognised by its default fill values

  const Array* find(const std::string& path) const;
  /// Null where nothing has that path.
  const AttributeMap* attributes(const std::string& path) const;
  /// Names in a group, in order.
  std::vector<std::string> members(const std::string& group) const;
  /// Paths of all arrays, in order; of broken ones too.
  std::vector<std::string> paths() const;
};

Attributes plain(const Catalog::AttributeMap& attributes);

}  // namespace moonhalo::io
