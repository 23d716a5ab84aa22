// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/decode.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/formats/attributes.h"

namespace moonhalo::io {

/// The attributes of one dataset, as far as decoding asks for them.
struct DecoderReader {
  using Number = Decoder::Number;
  const AttributeLookup& attributes;
  const h5::Where& where;
  bool found = false;

  std::vector<Number> numbers(const char* name) {
    const auto value = attributes.value(name);
    if (!value) return {};
    found = true;
    if (const auto* flag = std::get_if<bool>(&*value)) return {Number(*flag)};
    if (const auto* integer = std::get_if<int64_t>(&*value)) return {Number(*integer)};
    if (const auto* real = std::get_if<double>(&*value)) return {Number(*real)};
    if (const auto* list = std::get_if<std::vector<int64_t>>(&*value)) {
      return {list->begin(), list->end()};
    }
    if (const auto* list = std::get_if<std::vector<double>>(&*value)) {
      return {list->begin(), list->end()};
    }
    return numbers_in_text(name, *value);
  }

  /// Text that is a number is one. Another text says of no number that it is missing or out of range, but not how to
  /// scale.
  std::vector<Number> numbers_in_text(const std::string& name, const AttributeValue& value) const {
    const auto* text = std::get_if<std::string>(&value);
    const auto texts = text ? std::vector<std::string>{*text} : std::get<std::vector<std::string>>(value);
    std::vector<Number> found;
    for (const std::string& one : texts) {
      if (const auto number = number_of_text(one)) found.push_back(*number);
    }
    TORCH_CHECK_TYPE(found.size() == texts.size() || (name != "scale_factor" && name != "add_offset"),
                     where.to_string(), ": attribute \"", name, "\" is text and cannot be decoded\n  have  \"",
                     to_string(value), "\"\n  fix   store the attribute as a number, or read without decode");
    return found;
  }

  /// Not for "NaN", which nothing equals.
  static std::optional<Number> number_of_text(const std::string& text) {
    const char* const space = " \t\r\n";
    const size_t first = text.find_first_not_of(space), last = text.find_last_not_of(space);
    if (first == std::string::npos) return std::nullopt;
    const char* begin = text.data() + first + (text[first] == '+' ? 1 : 0);
    const char* const end = text.data() + last + 1;
    Number number = 0;
    const auto read = std::from_chars(begin, end, number);
    if (read.ec != std::errc() || read.ptr != end || std::isnan(number)) return std::nullopt;
    return number;
  }

  std::optional<Number> number(const char* name) {
    const auto list = numbers(name);
    if (list.empty()) return std::nullopt;
    TORCH_CHECK_VALUE(list.size() == 1, where.to_string(), ": attribute \"", name, "\" has ", list.size(),
                      " values where one is needed\n  have  a list"
                      "\n  fix   read without decode");
    return list.front();
  }

  bool is_floating(const char* name) const { return attributes.float_bytes(name) > 0; }
  bool is_double(const char* name) const { return attributes.float_bytes(name) > 4; }
};

namespace {

/// The value of cells that were never written (netcdf.h: NC_FILL_SHORT, ...). Bytes have none, as each of their few
/// values may be a number; nor have types that NetCDF does not know.
std::optional<long double> default_fill(at::ScalarType stored) {
  switch (stored) {
    case at::kShort:
      return -32767;
    case at::kUInt16:
      return 65535;
    case at::kInt:
      return -2147483647;
    case at::kUInt32:
      return 4294967295;
    case at::kLong:
      return -9223372036854775806LL;
    case at::kUInt64:
      return 18446744073709551614ULL;
    case at::kFloat:
    case at::kDouble:
      return 9.9692099683868690e+36;
    default:
      return std::nullopt;
  }
}

/// True for a dataset that NetCDF's library has made: it notes so in the file, since 4.4.1, and as the dataset's fill
/// value in HDF5. Other programs' HDF5 may hold 65535, and mean it.
bool is_of_netcdf(hid_t dataset, const h5::Where& where) {
  const h5::Scope scope;
  const h5::Handle type = h5::type_of(dataset, where);
  const H5T_class_t kind = H5Tget_class(type.get());
  if (kind != H5T_INTEGER && kind != H5T_FLOAT) return false;
  if (H5Aexists_by_name(dataset, "/", "_NCProperties", H5P_DEFAULT) > 0) return true;
  const h5::Handle list = h5::creation_list_of(dataset, where);
  H5D_fill_value_t defined{};
  h5::checked(where, "read its fill value", [&] { return H5Pfill_value_defined(list.get(), &defined); });
  const auto dtype = h5::scalar_type(type.get(), where);
  const auto usual = dtype ? default_fill(*dtype) : std::nullopt;
  if (defined != H5D_FILL_VALUE_USER_DEFINED || !usual) return false;
  long double fill = 0;
  h5::checked(where, "read its fill value", [&] { return H5Pget_fill_value(list.get(), H5T_NATIVE_LDOUBLE, &fill); });
  return fill == *usual;
}

}  // namespace

AttributeLookup attributes_of(hid_t dataset, const h5::Where& where) {
  const auto value = [dataset, &where](const std::string& name) { return h5::find_attribute(dataset, name, where); };
  const auto float_bytes = [dataset](const std::string& name) -> size_t {
    const h5::Scope scope;
    if (H5Aexists(dataset, name.c_str()) <= 0) return 0;
    const h5::Handle attribute(H5Aopen(dataset, name.c_str(), H5P_DEFAULT), H5Aclose);
    const h5::Handle type(H5Aget_type(attribute.get()), H5Tclose);
    return H5Tget_class(type.get()) == H5T_FLOAT ? H5Tget_size(type.get()) : 0;
  };
  return {value, float_bytes, [dataset, &where] { return is_of_netcdf(dataset, where); }};
}

std::optional<Decoder> Decoder::read(const AttributeLookup& attributes, at::ScalarType stored, const h5::Where& where) {
  Decoder decoder;
  DecoderReader reader{attributes, where};
  const bool packed = at::isIntegralType(stored, false);
  const auto scale = reader.number("scale_factor");
  const auto offset = reader.number("add_offset");
  decoder.scale_ = static_cast<double>(scale.value_or(1));
  decoder.offset_ = static_cast<double>(offset.value_or(0));

  for (const char* name : {"_FillValue", "missing_value"}) {
    for (const Number value : reader.numbers(name)) {
      if (!std::isnan(value)) decoder.missing_.push_back(value);
    }
  }
  if (const auto fill = default_fill(stored);
      fill && !attributes.value("_FillValue") && attributes.has_default_fill()) {
    decoder.missing_.push_back(*fill);
    reader.found = true;
  }

  const auto range = reader.numbers("valid_range");
  TORCH_CHECK_VALUE(range.empty() || range.size() == 2, where.to_string(), ": attribute \"valid_range\" has ",
                    range.size(),
                    " values, not 2"
                    "\n  have  no lower and upper bound\n  fix   read without decode");
  auto low = reader.number("valid_min");
  auto high = reader.number("valid_max");
  if (!range.empty()) low = range[0], high = range[1];
  const bool of_values =
      packed && (scale || offset) &&
      (reader.is_floating("valid_range") || reader.is_floating("valid_min") || reader.is_floating("valid_max"));
  if (of_values) {
    decoder.value_min_ = low;
    decoder.value_max_ = high;
  } else {
    decoder.stored_min_ = low;
    decoder.stored_max_ = high;
  }

  const auto sign = attributes.value("_Unsigned");
  if (sign && packed && at::isSignedType(stored) && std::holds_alternative<std::string>(*sign)) {
    decoder.unsigned_ = std::get<std::string>(*sign) == "true";
    reader.found |= decoder.unsigned_;
  }
  if (!reader.found) return std::nullopt;

  if (!packed) {
    decoder.dtype_ = stored == at::kDouble ? at::kDouble : at::kFloat;
  } else if (scale || offset) {
    const bool wide = reader.is_double("scale_factor") || reader.is_double("add_offset");
    decoder.dtype_ = wide ? at::kDouble : at::kFloat;
  } else {
    decoder.dtype_ = at::elementSize(stored) > 2 ? at::kDouble : at::kFloat;
  }
  return decoder;
}

namespace {

/// `number` in the stored type, as far as a stored number can equal it.
template <typename Stored>
std::optional<Stored> in_stored_type(long double number, bool as_unsigned) {
  if constexpr (std::is_integral_v<Stored>) {
    using Limits = std::numeric_limits<Stored>;
    if (as_unsigned && number < 0) number += static_cast<long double>(Limits::max()) + 1;
    if (number < static_cast<long double>(Limits::min()) || number > static_cast<long double>(Limits::max()) ||
        number != std::floor(number)) {
      return std::nullopt;
    }
    return static_cast<Stored>(number);
  } else {
    const auto value = static_cast<Stored>(static_cast<double>(number));
    if (std::isinf(static_cast<double>(value)) && !std::isinf(number)) return std::nullopt;
    return value;
  }
}

}  // namespace

template <typename Stored, typename Value>
void Decoder::run(const Stored* stored, Value* values, int64_t count) const {
  constexpr bool kLarge = std::is_integral_v<Stored> && sizeof(Stored) == 8;
  using Wide = std::conditional_t<kLarge, long double, double>;
  std::vector<Stored> missing;
  for (const Number number : missing_) {
    if (const auto value = in_stored_type<Stored>(number, unsigned_)) missing.push_back(*value);
  }
  const auto bound = [&](const std::optional<Number>& number, Number otherwise) {
    if (!number) return static_cast<Wide>(otherwise);
    const auto exact = in_stored_type<Stored>(*number, unsigned_);
    return exact ? static_cast<Wide>(*exact) : static_cast<Wide>(*number);
  };
  const bool bounded = stored_min_ || stored_max_;
  const Wide low = bound(stored_min_, -std::numeric_limits<double>::infinity());
  const Wide high = bound(stored_max_, std::numeric_limits<double>::infinity());
  const bool value_bounded = value_min_ || value_max_;
  const double value_low = value_min_.value_or(-std::numeric_limits<double>::infinity());
  const double value_high = value_max_.value_or(std::numeric_limits<double>::infinity());
  const bool scaled = scale_ != 1 || offset_ != 0;

  for (int64_t i = 0; i < count; ++i) {
    const Stored raw = stored[i];
    bool gone = false;
    for (const Stored& value : missing) gone |= raw == value;
    if (bounded) gone |= static_cast<Wide>(raw) < low || static_cast<Wide>(raw) > high;
    double value = static_cast<double>(raw);
    if (scaled) value = value * scale_ + offset_;
    if (value_bounded) gone |= value < value_low || value > value_high;
    values[i] = gone ? std::numeric_limits<Value>::quiet_NaN() : static_cast<Value>(value);
  }
}

template <typename Value>
void Decoder::run(const at::Tensor& stored, Value* values) const {
  const int64_t count = stored.numel();
  const void* data = stored.const_data_ptr();
  const auto as = [&]<typename Stored>(Stored) { run(static_cast<const Stored*>(data), values, count); };
  switch (stored.scalar_type()) {
    case at::kChar:
      return unsigned_ ? as(uint8_t{}) : as(int8_t{});
    case at::kShort:
      return unsigned_ ? as(uint16_t{}) : as(int16_t{});
    case at::kInt:
      return unsigned_ ? as(uint32_t{}) : as(int32_t{});
    case at::kLong:
      return unsigned_ ? as(uint64_t{}) : as(int64_t{});
    case at::kByte:
    case at::kBool:
      return as(uint8_t{});
    case at::kUInt16:
      return as(uint16_t{});
    case at::kUInt32:
      return as(uint32_t{});
    case at::kUInt64:
      return as(uint64_t{});
    case at::kHalf:
      return as(at::Half{});
    case at::kBFloat16:
      return as(at::BFloat16{});
    case at::kFloat:
      return as(float{});
    case at::kDouble:
      return as(double{});
    default:
      TORCH_INTERNAL_ASSERT(false, "decode: unexpected dtype ", stored.scalar_type());
  }
}

void Decoder::apply(const at::Tensor& stored, const at::Tensor& values) const {
  TORCH_INTERNAL_ASSERT(stored.is_contiguous() && values.is_contiguous() && stored.numel() == values.numel());
  if (values.scalar_type() == at::kDouble) {
    run(stored, values.mutable_data_ptr<double>());
  } else {
    run(stored, values.mutable_data_ptr<float>());
  }
}

}  // namespace moonhalo::io
