// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/formats/attributes.h"

namespace moonhalo::io {

/// The attributes of one dataset, by name.
struct AttributeLookup {
  std::function<std::optional<AttributeValue>(const std::string& name)> value;
  /// Bytes of one number where they are floating-point numbers; 0 for all others.
  std::function<size_t(const std::string& name)> float_bytes;
  /// True where the format is NetCDF, whose default fill value of a type is missing unless _FillValue says another.
  std::function<bool()> has_default_fill;
};
AttributeLookup attributes_of(hid_t dataset, const h5::Where& where);

/// Says how stored numbers become values, after the CF conventions (sections 2.5.1 and 8.1) and the NetCDF users'
/// guide: value = stored * scale_factor + add_offset; NaN where stored equals _FillValue (without one NetCDF's
/// default fill value, which bytes do not have) or any missing_value, or is outside valid_min .. valid_max or
/// valid_range. Those attributes describe stored numbers, except a floating-point valid_range of packed integers,
/// which describes values. Text among them counts where it is a number, and says nothing where it is none, as "NaN"
/// and "none". _Unsigned = "true" reads signed integers as unsigned.
class Decoder {
 public:
  /// From a dataset's attributes. Nothing where none of them is there, nor a default fill value:
  /// stored numbers are the values.
  static std::optional<Decoder> read(const AttributeLookup& attributes, at::ScalarType stored, const h5::Where& where);

  /// float32 or float64: the type of scale_factor and add_offset for packed integers (without those
  /// float32 up to 16 bits, float64 above), the stored type for floats (float32 for 16-bit ones).
  at::ScalarType dtype() const { return dtype_; }
  /// Both contiguous, equally many elements; `values` is float32 or float64 and may be `stored`
  /// itself.
  void apply(const at::Tensor& stored, const at::Tensor& values) const;

 private:
  // long double holds every int64 and every double exactly.
  using Number = long double;
  template <typename Stored, typename Value>
  void run(const Stored* stored, Value* values, int64_t count) const;
  template <typename Value>
  void run(const at::Tensor& stored, Value* values) const;
  friend struct DecoderReader;

  at::ScalarType dtype_ = at::kFloat;
  bool unsigned_ = false;
  double scale_ = 1;
  double offset_ = 0;
  std::vector<Number> missing_;
  std::optional<Number> stored_min_, stored_max_;
  std::optional<double> value_min_, value_max_;
};

}  // namespace moonhalo::io
