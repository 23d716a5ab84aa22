// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/zarr_types.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>

#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/numpy_dtypes.h"

namespace moonhalo::io {
namespace {

constexpr std::array kDtypes = {at::kBool,     at::kChar,   at::kByte,   at::kShort,        at::kUInt16,
                                at::kInt,      at::kUInt32, at::kLong,   at::kUInt64,       at::kHalf,
                                at::kBFloat16, at::kFloat,  at::kDouble, at::kComplexFloat, at::kComplexDouble};

ZarrType type_of(at::ScalarType dtype, bool swapped) {
  return {dtype, h5::dtype_name(dtype), c10::elementSize(dtype), swapped && c10::elementSize(dtype) > 1};
}

template <typename Float>
std::string as_bytes(Float value) {
  std::string bytes(sizeof(Float), '\0');
  std::memcpy(bytes.data(), &value, sizeof(Float));
  return bytes;
}

[[noreturn]] void no_fill(const Json& value, const ZarrType& type) {
  throw BrokenZarr("fill value " + value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80) + " for " +
                   type.name);
}

/// "0x7fc00000": the bits of a float.
std::string hex_bytes(const Json& value, const ZarrType& type, size_t bytes) {
  const auto& text = value.get_ref<const std::string&>();
  uint64_t bits = 0;
  const char* end = text.data() + text.size();
  const bool good = text.size() == 2 + 2 * bytes && text.starts_with("0x") &&
                    std::from_chars(text.data() + 2, end, bits, 16).ptr == end;
  if (!good) no_fill(value, type);
  return as_bytes(bits).substr(0, bytes);
}

std::string float_bytes(const Json& value, const ZarrType& type, at::ScalarType dtype) {
  double number = 0;
  if (value.is_string()) {
    const auto special = special_number(value.get_ref<const std::string&>());
    if (!special) return hex_bytes(value, type, c10::elementSize(dtype));
    number = *special;
  } else if (value.is_number()) {
    number = value.get<double>();
  } else {
    no_fill(value, type);
  }
  if (dtype == at::kHalf) return as_bytes(c10::Half(static_cast<float>(number)));
  if (dtype == at::kBFloat16) return as_bytes(c10::BFloat16(static_cast<float>(number)));
  if (dtype == at::kFloat) return as_bytes(static_cast<float>(number));
  return as_bytes(number);
}

std::string integer_bytes(const Json& value, const ZarrType& type) {
  const bool is_signed = at::isSignedType(*type.dtype);
  const auto bits = static_cast<int>(8 * type.bytes);
  bool good = false;
  uint64_t number = 0;
  if (value.is_number_unsigned()) {
    number = value.get<uint64_t>();
    good = number <= ~uint64_t{0} >> (64 - bits + is_signed);
  } else if (value.is_number_integer() && is_signed) {
    const auto negative = value.get<int64_t>();
    good = negative >= -(int64_t{1} << (bits - 2)) * 2;
    number = static_cast<uint64_t>(negative);
  } else if (value.is_number_float() && value.get<double>() == 0) {
    good = true;  // some writers give 0.0 to every type
  }
  if (!good) no_fill(value, type);
  return as_bytes(number).substr(0, type.bytes);
}

/// `unit` is numpy's: "ns", "D", ...
ZarrType time_type(const std::string& unit, int64_t factor, bool is_duration, bool swapped) {
  static const std::map<std::string, std::pair<const char*, int64_t>> known = {
      {"W", {"days", 7}},          {"D", {"days", 1}},
      {"h", {"hours", 1}},         {"m", {"minutes", 1}},
      {"s", {"seconds", 1}},       {"ms", {"milliseconds", 1}},
      {"us", {"microseconds", 1}}, {"\u03bcs", {"microseconds", 1}},
      {"ns", {"nanoseconds", 1}},  {"ps", {"picoseconds", 1}},
      {"fs", {"femtoseconds", 1}}, {"as", {"attoseconds", 1}},
  };
  ZarrType type = type_of(at::kLong, swapped);
  type.time = ZarrTime{.is_duration = is_duration};
  const auto found = known.find(unit);
  if (found != known.end() && !__builtin_mul_overflow(factor, found->second.second, &type.time->factor))
    type.time->units = found->second.first;
  return type;
}

/// "<M8[10s]" or "<m8".
ZarrType zarr2_time_type(const std::string& text) {
  const size_t bracket = text.find('[');
  std::string unit =
      bracket == std::string::npos || !text.ends_with(']') ? "" : text.substr(bracket + 1, text.size() - bracket - 2);
  int64_t factor = 1;
  const auto parsed = std::from_chars(unit.data(), unit.data() + unit.size(), factor);
  if (parsed.ec == std::errc()) unit.erase(0, static_cast<size_t>(parsed.ptr - unit.data()));
  return time_type(unit, factor, text[1] == 'm', text[0] == '>');
}

}  // namespace

ZarrType zarr2_type(const Json& name) {
  if (name.is_array()) return {std::nullopt, "compound", 0};
  const std::string text = name.is_string() ? name.get<std::string>() : "";
  size_t bytes = 0;
  const char* end = text.data() + text.size();
  const auto parsed =
      text.size() > 2 ? std::from_chars(text.data() + 2, end, bytes) : std::from_chars_result{end, std::errc()};
  const bool timed = text.size() > 2 && (text[1] == 'M' || text[1] == 'm');
  const bool good = text.size() >= 2 && std::strchr("<>|", text[0]) && std::strchr("biufcSUVOMm", text[1]) &&
                    parsed.ec == std::errc() && (parsed.ptr == end || (timed && *parsed.ptr == '[')) &&
                    bytes < (1 << 20);
  if (!good) throw BrokenZarr("dtype " + name.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80));
  const bool swapped = text[0] == '>';
  if (timed && bytes == 8) return zarr2_time_type(text);
  if (const auto dtype = numpy_dtype(text.substr(1))) return type_of(*dtype, swapped);
  if (text[1] == 'S' && bytes > 0) return {std::nullopt, "string", bytes};
  return {std::nullopt, text[1] == 'O' ? "object" : text[1] == 'U' ? "unicode string" : text, 0};
}

ZarrType zarr3_type(const Json& name) {
  const std::string text = name.is_object() ? need_text(name, "name") : name.is_string() ? name.get<std::string>() : "";
  if (text.empty()) throw BrokenZarr("a data_type that is not a name");
  for (const auto dtype : kDtypes) {
    if (text == h5::dtype_name(dtype)) return type_of(dtype, false);
  }
  if (name.is_object() && (text == "numpy.datetime64" || text == "numpy.timedelta64")) {
    const Json& settings = need(name, "configuration");
    const Json& factor = need(settings, "scale_factor");
    if (!factor.is_number_integer()) throw BrokenZarr("a scale_factor of " + text + " that is not an integer");
    return time_type(need_text(settings, "unit"), factor.get<int64_t>(), text == "numpy.timedelta64", false);
  }
  return {std::nullopt, text == "string" ? "unicode string" : text, 0};
}

void add_time_attributes(Catalog::AttributeMap& attrs, const ZarrType& type) {
  if (!type.time) return;
  attrs.emplace("_FillValue", Catalog::Attribute{std::numeric_limits<int64_t>::min()});
  const auto& [units, factor, is_duration] = *type.time;
  if (units.empty() || attrs.contains("units")) return;
  attrs["units"] = {is_duration ? units : units + " since 1970-01-01"};
  if (!is_duration) attrs.emplace("calendar", Catalog::Attribute{std::string("proleptic_gregorian")});
  if (factor != 1) attrs.emplace("scale_factor", Catalog::Attribute{factor});
}

std::string fill_bytes(const Json& value, const ZarrType& type) {
  std::string zeros(type.bytes, '\0');
  if (value.is_null()) return zeros;
  if (!type.dtype) {
    if (!value.is_string() || type.name != "string") return zeros;
    std::string text = from_base64(value.get<std::string>());
    text.resize(type.bytes);
    return text;
  }
  const at::ScalarType dtype = *type.dtype;
  if (type.time && value == "NaT") return as_bytes(std::numeric_limits<int64_t>::min());
  if (dtype == at::kBool) {
    if (value.is_boolean()) return as_bytes(static_cast<char>(value.get<bool>()));
    if (value == 0 || value == 1) return as_bytes(static_cast<char>(value == 1));
    no_fill(value, type);
  }
  if (c10::isComplexType(dtype)) {
    const auto part = c10::toRealValueType(dtype);
    if (value.is_number()) return float_bytes(value, type, part) + float_bytes(0, type, part);
    if (!value.is_array() || value.size() != 2) no_fill(value, type);
    return float_bytes(value[0], type, part) + float_bytes(value[1], type, part);
  }
  return at::isFloatingType(dtype) ? float_bytes(value, type, dtype) : integer_bytes(value, type);
}

std::optional<Catalog::Attribute> fill_attribute(const std::string& fill, const ZarrType& type) {
  if (!type.dtype || c10::isComplexType(*type.dtype) || *type.dtype == at::kBool) return std::nullopt;
  const auto held = [&](auto number) {
    std::memcpy(&number, fill.data(), sizeof(number));
    return number;
  };
  switch (*type.dtype) {
    case at::kFloat:
      return Catalog::Attribute{double{held(float{})}, 4};
    case at::kDouble:
      return Catalog::Attribute{held(double{}), 8};
    case at::kHalf:
      return Catalog::Attribute{static_cast<double>(static_cast<float>(held(c10::Half{}))), 2};
    case at::kBFloat16:
      return Catalog::Attribute{static_cast<double>(static_cast<float>(held(c10::BFloat16{}))), 2};
    case at::kUInt64:
      if (held(int64_t{}) < 0) return Catalog::Attribute{static_cast<double>(held(uint64_t{})), 8};
      return Catalog::Attribute{held(int64_t{})};
    default:
      break;
  }
  int64_t number = 0;
  std::memcpy(&number, fill.data(), fill.size());
  const auto unused = static_cast<int>(64 - 8 * fill.size());
  if (at::isSignedType(*type.dtype)) number = static_cast<int64_t>(static_cast<uint64_t>(number) << unused) >> unused;
  return Catalog::Attribute{number};
}

}  // namespace moonhalo::io
