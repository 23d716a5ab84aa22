// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io::h5 {

/// Strings, lists and references that HDF5 allocated while reading; given back at the end.
class Reclaim {
 public:
  Reclaim(hid_t type, hid_t space, void* data) : type_(type), space_(space), data_(data) {}
  ~Reclaim() {
    const Scope scope;
    H5Dvlen_reclaim(type_, space_, H5P_DEFAULT, data_);
  }
  Reclaim(const Reclaim&) = delete;
  Reclaim& operator=(const Reclaim&) = delete;

 private:
  hid_t type_;
  hid_t space_;
  void* data_;
};

/// `count` strings of HDF5 type `type`, of any length or of one, that `read` puts in memory laid out as `space`.
std::vector<std::string> read_string_values(hid_t type, hid_t space, size_t count, const Where& where,
                                            const std::function<herr_t(void* out)>& read);

}  // namespace moonhalo::io::h5
