// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/pytorch/pt_dtypes.h"

namespace moonhalo::io {
namespace {

constexpr PtStorageType kStorageTypes[] = {
    {"float64", "DoubleStorage", at::kDouble},
    {"float32", "FloatStorage", at::kFloat},
    {"float16", "HalfStorage", at::kHalf},
    {"bfloat16", "BFloat16Storage", at::kBFloat16},
    {"int64", "LongStorage", at::kLong},
    {"int32", "IntStorage", at::kInt},
    {"int16", "ShortStorage", at::kShort},
    {"int8", "CharStorage", at::kChar},
    {"uint8", "ByteStorage", at::kByte},
    {"bool", "BoolStorage", at::kBool},
    {"complex64", "ComplexFloatStorage", at::kComplexFloat},
    {"complex128", "ComplexDoubleStorage", at::kComplexDouble},
    {"complex32", nullptr, at::kComplexHalf},
    {"uint16", nullptr, at::kUInt16},
    {"uint32", nullptr, at::kUInt32},
    {"uint64", nullptr, at::kUInt64},
    {"float8_e4m3fn", nullptr, at::kFloat8_e4m3fn},
    {"float8_e5m2", nullptr, at::kFloat8_e5m2},
    {"float8_e4m3fnuz", nullptr, at::kFloat8_e4m3fnuz},
    {"float8_e5m2fnuz", nullptr, at::kFloat8_e5m2fnuz},
};

std::string_view last_part(std::string_view name) {
  name.remove_prefix(name.rfind('.') + 1);
  return name;
}

}  // namespace

const PtStorageType* storage_type_of(at::ScalarType type) {
  for (const PtStorageType& known : kStorageTypes) {
    if (known.type == type) return &known;
  }
  return nullptr;
}

std::optional<at::ScalarType> dtype_of_storage(std::string_view name) {
  if (last_part(name) == "UntypedStorage") return at::kByte;
  for (const PtStorageType& known : kStorageTypes) {
    if (known.storage != nullptr && known.storage == last_part(name)) return known.type;
  }
  return std::nullopt;
}

std::optional<at::ScalarType> dtype_of_name(std::string_view name) {
  for (const PtStorageType& known : kStorageTypes) {
    if (known.dtype == last_part(name)) return known.type;
  }
  return std::nullopt;
}

}  // namespace moonhalo::io
