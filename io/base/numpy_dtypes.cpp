// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/numpy_dtypes.h"

namespace moonhalo::io {
namespace {

struct NumpyDtype {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr NumpyDtype kNumpyDtypes[] = {
    {"f8", at::kDouble},       {"f4", at::kFloat},          {"f2", at::kHalf},   {"i8", at::kLong},
    {"i4", at::kInt},          {"i2", at::kShort},          {"i1", at::kChar},   {"u1", at::kByte},
    {"b1", at::kBool},         {"u2", at::kUInt16},         {"u4", at::kUInt32}, {"u8", at::kUInt64},
    {"c8", at::kComplexFloat}, {"c16", at::kComplexDouble},
};

}  // namespace

std::string_view numpy_name(at::ScalarType dtype) {
  for (const NumpyDtype& known : kNumpyDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  return "";
}

std::optional<at::ScalarType> numpy_dtype(std::string_view name) {
  for (const NumpyDtype& known : kNumpyDtypes) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

}  // namespace moonhalo::io
