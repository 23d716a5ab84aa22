// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/attributes.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <limits>

#include "moonhalo/io/base/h5_text.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/memory.h"

namespace moonhalo::io {
namespace h5 {
namespace {

struct Attribute {
  Handle id, type, space;
  size_t count = 0;
};

Attribute open_attribute(hid_t object, const std::string& name, const Where& where) {
  Attribute attribute;
  attribute.id = make(where, "open an attribute", H5Aclose, [&] { return H5Aopen(object, name.c_str(), H5P_DEFAULT); });
  attribute.type = make(where, "read an attribute's type", H5Tclose, [&] { return H5Aget_type(attribute.id.get()); });
  attribute.space =
      make(where, "read an attribute's shape", H5Sclose, [&] { return H5Aget_space(attribute.id.get()); });
  attribute.count = static_cast<size_t>(
      checked(where, "read an attribute's shape", [&] { return H5Sget_simple_extent_npoints(attribute.space.get()); }));
  check_fits_memory(where, {static_cast<int64_t>(attribute.count)},
                    static_cast<double>(H5Tget_size(attribute.type.get())));
  return attribute;
}

std::vector<std::string> read_strings(const Attribute& attribute, const Where& where) {
  return read_string_values(attribute.type.get(), attribute.space.get(), attribute.count, where,
                            [&](void* out) { return H5Aread(attribute.id.get(), attribute.type.get(), out); });
}

template <typename T>
std::vector<T> read_numbers(const Attribute& attribute, hid_t type, const Where& where) {
  std::vector<T> values(attribute.count);
  checked(where, "read an attribute", [&] { return H5Aread(attribute.id.get(), type, values.data()); });
  return values;
}

template <typename T>
AttributeValue one_or_list(std::vector<T> values) {
  if (values.size() == 1) return std::move(values.front());
  return values;
}

bool exceeds_int64(const Attribute& attribute, const Where& where) {
  const auto values = read_numbers<uint64_t>(attribute, H5T_NATIVE_UINT64, where);
  return std::any_of(values.begin(), values.end(),
                     [](uint64_t value) { return value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()); });
}

/// Returns nothing for a type that has no AttributeValue.
std::optional<AttributeValue> read_value(const Attribute& attribute, const Where& where) {
  if (attribute.count == 0) return std::vector<std::string>{};
  const auto kind = checked(where, "read an attribute's type", [&] { return H5Tget_class(attribute.type.get()); });
  if (kind == H5T_STRING) return one_or_list(read_strings(attribute, where));
  const auto dtype = scalar_type(attribute.type.get(), where);
  if (!dtype || c10::isComplexType(*dtype)) return std::nullopt;
  if (at::isFloatingType(*dtype)) {
    return one_or_list(read_numbers<double>(attribute, H5T_NATIVE_DOUBLE, where));
  }
  if (*dtype == at::kBool) {
    const Handle type = memory_type(attribute.type.get(), *dtype, where);
    const auto values = read_numbers<int8_t>(attribute, type.get(), where);
    if (values.size() == 1) return values.front() != 0;
    return std::vector<int64_t>(values.begin(), values.end());
  }
  if (*dtype == at::kUInt64 && exceeds_int64(attribute, where)) {
    return one_or_list(read_numbers<double>(attribute, H5T_NATIVE_DOUBLE, where));
  }
  return one_or_list(read_numbers<int64_t>(attribute, H5T_NATIVE_INT64, where));
}

herr_t add_name(hid_t, const char* name, const H5A_info_t*, void* data) {
  static_cast<std::vector<std::string>*>(data)->emplace_back(name);
  return 0;
}

bool is_internal(const std::string& name) {
  static const std::array<const char*, 10> internal = {
      "CLASS",         "NAME",        "DIMENSION_LIST", "REFERENCE_LIST",      "DIMENSION_LABELS",
      "_Netcdf4Dimid", "_nc3_strict", "_NCProperties",  "_Netcdf4Coordinates", "_NETCDF4_DIMID"};
  return std::find(internal.begin(), internal.end(), name) != internal.end();
}

/// True in files with dims of NetCDF, whose readers in C and Fortran want text of one length. Readers of other HDF5
/// files (h5py) take that for bytes, and text of any length for strings.
bool has_fixed_length(hid_t object, const std::string& name, const Where& where) {
  if (name == "Conventions") return true;
  for (const char* const sign : {"Conventions", "_NCProperties"}) {
    if (checked(where, "look for an attribute", [&] { return H5Aexists_by_name(object, "/", sign, H5P_DEFAULT); }) > 0)
      return true;
  }
  return false;
}

/// Text of one length, or of any (H5T_VARIABLE).
Handle string_type(size_t length, const Where& where) {
  Handle type = make(where, "make a type", H5Tclose, [] { return H5Tcopy(H5T_C_S1); });
  checked(where, "make a type", [&] { return H5Tset_size(type.get(), length); });
  checked(where, "make a type", [&] { return H5Tset_cset(type.get(), H5T_CSET_UTF8); });
  return type;
}

/// `stored`: the type in the file; `type`, that of the data, when absent.
void write_raw(hid_t object, const std::string& name, hid_t type, std::optional<size_t> length, const void* data,
               const Where& where, const Handle& stored = {}) {
  const Handle space = simple_space(length ? std::vector<hsize_t>{*length} : std::vector<hsize_t>{}, where);
  if (checked(where, "look for an attribute", [&] { return H5Aexists(object, name.c_str()); }) > 0) {
    checked(where, "replace an attribute", [&] { return H5Adelete(object, name.c_str()); });
  }
  const Handle attribute = make(where, "create an attribute", H5Aclose, [&] {
    return H5Acreate2(object, name.c_str(), stored ? stored.get() : type, space.get(), H5P_DEFAULT, H5P_DEFAULT);
  });
  if (length && *length == 0) return;
  checked(where, "write an attribute", [&] { return H5Awrite(attribute.get(), type, data); });
}

/// True if an attribute of this name describes stored values of a type, and so has that type (CF 1.8, section
/// 2.5.1).
bool speaks_of_values(const std::string& name, hid_t type) {
  static const std::array<const char*, 7> names = {"_FillValue",  "missing_value", "valid_min", "valid_max",
                                                   "valid_range", "flag_values",   "flag_masks"};
  const auto kind = H5Tget_class(type);
  return (kind == H5T_INTEGER || kind == H5T_FLOAT) && std::find(names.begin(), names.end(), name) != names.end();
}

/// The type of a dataset whose attribute of this name describes its values. Empty for all others.
Handle type_of_values(hid_t object, const std::string& name, const Where& where) {
  if (checked(where, "write an attribute", [&] { return H5Iget_type(object); }) != H5I_DATASET) return {};
  Handle type = type_of(object, where);
  return speaks_of_values(name, type.get()) ? std::move(type) : Handle();
}

/// ValueError for numbers that integers of type `stored` cannot hold.
template <typename T>
void check_values(const std::string& name, const std::vector<T>& values, hid_t stored, const Where& where) {
  if (H5Tget_class(stored) != H5T_INTEGER) return;
  const hid_t type = std::is_same_v<T, double> ? H5T_NATIVE_DOUBLE : H5T_NATIVE_INT64;
  std::vector<T> back = values;
  for (const auto& [from, to] : {std::pair(type, stored), {stored, type}})
    checked(where, "convert an attribute",
            [&, from = from, to = to] { return H5Tconvert(from, to, back.size(), back.data(), nullptr, H5P_DEFAULT); });
  TORCH_CHECK_VALUE(back == values, where.to_string(), ": attribute \"", name, "\" does not fit its values\n  have  ",
                    to_string(AttributeValue(values)), " for ", type_name(stored, where),
                    "\n  fix   give a value of the dataset's type");
}

/// The name of an object that a reference leads to, without its folders.
std::string referenced_name(hid_t file, const hobj_ref_t& reference, const Where& where) {
  const Handle object = make(where, "follow a dimension scale", H5Oclose,
                             [&] { return H5Rdereference2(file, H5P_DEFAULT, H5R_OBJECT, &reference); });
  std::array<char, 1024> name{};
  checked(where, "name a dimension scale", [&] { return H5Iget_name(object.get(), name.data(), name.size()); });
  const std::string path(name.data());
  return path.substr(path.rfind('/') + 1);
}

/// True for lists of references to objects, each of as many bytes as ours. In a damaged file they may be of anything.
bool lists_references(hid_t type, const Where& where) {
  if (H5Tget_class(type) != H5T_VLEN) return false;
  const Handle element = make(where, "read an attribute's type", H5Tclose, [&] { return H5Tget_super(type); });
  return H5Tget_class(element.get()) == H5T_REFERENCE && H5Tget_size(element.get()) == sizeof(hobj_ref_t);
}

/// DIMENSION_LIST holds, for every dimension, a list of references to its scales.
std::vector<std::string> scale_names(hid_t dataset, size_t ndim, const Where& where) {
  const Attribute attribute = open_attribute(dataset, "DIMENSION_LIST", where);
  std::vector<std::string> names(ndim);
  if (attribute.count != ndim || !lists_references(attribute.type.get(), where)) return names;
  std::vector<hvl_t> lists(ndim, hvl_t{});
  checked(where, "read the dimension scales",
          [&] { return H5Aread(attribute.id.get(), attribute.type.get(), lists.data()); });
  const Reclaim reclaim(attribute.type.get(), attribute.space.get(), lists.data());
  for (size_t dim = 0; dim < ndim; ++dim) {
    if (lists[dim].len == 0) continue;
    names[dim] = referenced_name(dataset, *static_cast<hobj_ref_t*>(lists[dim].p), where);
  }
  return names;
}

bool has(hid_t object, const char* name, const Where& where) {
  return checked(where, "look for an attribute", [&] { return H5Aexists(object, name); }) > 0;
}

}  // namespace

std::vector<std::string> attribute_names(hid_t object, const Where& where) {
  std::vector<std::string> names;
  hsize_t position = 0;
  // Listing frees what it never filled when an attribute is damaged. Looking for one that is not there reads all and
  // fails cleanly.
  checked(where, "list the attributes", [&] { return H5Aexists(object, "no attribute has this name"); });
  checked(where, "list the attributes",
          [&] { return H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, &position, add_name, &names); });
  std::erase_if(names, is_internal);
  std::sort(names.begin(), names.end());  // HDF5's own sorting crashes on damaged files, as for links
  return names;
}

std::optional<AttributeValue> find_attribute(hid_t object, const std::string& name, const Where& where) {
  const Scope scope;
  if (!has(object, name.c_str(), where)) return std::nullopt;
  const Attribute attribute = open_attribute(object, name, where);
  auto value = read_value(attribute, where);
  TORCH_CHECK_TYPE(value.has_value(), where.to_string(), ": attribute \"", name, "\" is a ",
                   type_name(attribute.type.get(), where),
                   "\n  have  a type that is neither number nor string"
                   "\n  fix   read it with another tool, or store it as numbers or text");
  return value;
}

Attributes read_attributes(hid_t object, const Where& where) {
  const Scope scope;
  Attributes result;
  for (const auto& name : attribute_names(object, where)) {
    auto value = read_value(open_attribute(object, name, where), where);
    if (value) result.emplace(name, std::move(*value));
  }
  return result;
}

void check_attributes(const Attributes& attrs, hid_t type, const Where& where) {
  for (const auto& [name, value] : attrs) {
    if (!speaks_of_values(name, type)) continue;
    std::visit(
        [&, &name = name](const auto& held) {
          using T = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>)
            check_values(name, std::vector{held}, type, where);
          if constexpr (std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, std::vector<double>>)
            check_values(name, held, type, where);
        },
        value);
  }
}

void write_attribute(hid_t object, const std::string& name, const AttributeValue& value, const Where& where) {
  const auto numbers = [&](const auto& values, hid_t type, bool list) {
    const Handle stored = type_of_values(object, name, where);
    if (stored) check_values(name, values, stored.get(), where);
    write_raw(object, name, type, list ? std::optional(values.size()) : std::nullopt, values.data(), where, stored);
  };
  if (const auto* flag = std::get_if<bool>(&value)) {
    const int8_t number = *flag ? 1 : 0;
    write_raw(object, name, tensor_type(at::kBool, where).get(), std::nullopt, &number, where);
  } else if (const auto* integer = std::get_if<int64_t>(&value)) {
    numbers(std::vector{*integer}, H5T_NATIVE_INT64, false);
  } else if (const auto* real = std::get_if<double>(&value)) {
    numbers(std::vector{*real}, H5T_NATIVE_DOUBLE, false);
  } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    numbers(*integers, H5T_NATIVE_INT64, true);
  } else if (const auto* reals = std::get_if<std::vector<double>>(&value)) {
    numbers(*reals, H5T_NATIVE_DOUBLE, true);
  } else if (const auto* text = std::get_if<std::string>(&value);
             text && !text->empty() && has_fixed_length(object, name, where)) {
    write_raw(object, name, string_type(text->size(), where).get(), std::nullopt, text->data(), where);
  } else {
    const auto* list = std::get_if<std::vector<std::string>>(&value);
    std::vector<const char*> pointers;
    if (text) pointers.push_back(text->c_str());
    for (size_t i = 0; list && i < list->size(); ++i) pointers.push_back((*list)[i].c_str());
    write_raw(object, name, string_type(H5T_VARIABLE, where).get(), list ? std::optional(list->size()) : std::nullopt,
              pointers.data(), where);
  }
}

std::vector<std::string> dimension_names(hid_t dataset, const std::string& name, size_t ndim, const Where& where) {
  if (ndim == 0) return {};
  const Scope scope;
  if (has(dataset, "DIMENSION_LIST", where)) return scale_names(dataset, ndim, where);
  if (has(dataset, "DIMENSION_LABELS", where)) {
    auto labels = read_strings(open_attribute(dataset, "DIMENSION_LABELS", where), where);
    labels.resize(ndim);
    return labels;
  }
  std::vector<std::string> names(ndim);
  if (ndim == 1 && has(dataset, "CLASS", where)) names[0] = name.substr(name.rfind('/') + 1);
  return names;
}

}  // namespace h5

}  // namespace moonhalo::io
