// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/base/h5.h"
#include "moonhalo/io/formats/attribute_value.h"

namespace moonhalo::io {

/// Reading and writing attributes of one open HDF5 object (a dataset or group).
namespace h5 {

/// Names in order, without those that HDF5 and NetCDF-4 keep for themselves (CLASS, DIMENSION_LIST,
/// _Netcdf4Dimid, ...).
std::vector<std::string> attribute_names(hid_t object, const Where& where);
/// Returns nothing when there is none of that name. TypeError for types with no AttributeValue (compounds,
/// references).
std::optional<AttributeValue> find_attribute(hid_t object, const std::string& name, const Where& where);
/// All that have an AttributeValue.
Attributes read_attributes(hid_t object, const Where& where);
/// Replaces one of the same name. float64 and int64 as such, but those that describe a dataset's stored values
/// (_FillValue, missing_value, valid_*, flag_*) as its type; text as UTF-8 of fixed length, lists of strings of
/// any; bool as h5py does. ValueError for a number that does not fit that type.
void write_attribute(hid_t object, const std::string& name, const AttributeValue& value, const Where& where);
/// Before a dataset of that type is made: ValueError for an attribute of its values that does not fit them.
void check_attributes(const Attributes& attrs, hid_t type, const Where& where);
/// Names of a dataset's dimensions: the NetCDF dimension scales attached to it, else HDF5's
/// dimension labels, else for a dimension scale its own name, else "".
std::vector<std::string> dimension_names(hid_t dataset, const std::string& name, size_t ndim, const Where& where);

}  // namespace h5

}  // namespace moonhalo::io
