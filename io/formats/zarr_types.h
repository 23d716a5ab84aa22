// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/formats/zarr_json.h"

namespace moonhalo::io {

/// The unit of numpy's datetime64 or timedelta64, which are stored as int64; the least one is not a time ("NaT").
struct ZarrTime {
  std::string units;         ///< as CF has them: "days"; empty for months and years, which differ in length
  int64_t factor = 1;        ///< how many of them a stored 1 is
  bool is_duration = false;  ///< timedelta64; else a time counts from 1970
};

struct ZarrType {
  std::optional<at::ScalarType> dtype;  ///< nothing where no tensor holds it
  std::string name;
  size_t bytes = 0;  ///< of an element; 0 where they differ
  bool swapped = false;
  std::optional<ZarrTime> time = {};
};

/// As numpy writes them: "<f4". A list is a compound.
ZarrType zarr2_type(const Json& name);
/// "float32", "bool", or an object with such a name. The codec "bytes" tells the order of bytes.
ZarrType zarr3_type(const Json& name);

/// Adds what CF says of numpy's times: units, calendar, and NaT as what is missing. Nothing for other types.
void add_time_attributes(Catalog::AttributeMap& attrs, const ZarrType& type);

/// One element as in memory: what stands in chunks that were never written.
std::string fill_bytes(const Json& value, const ZarrType& type);
/// The same as an attribute says it; nothing for types that no attribute holds.
std::optional<Catalog::Attribute> fill_attribute(const std::string& fill, const ZarrType& type);

}  // namespace moonhalo::io
