// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/h5_types.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace moonhalo::io::h5 {
namespace {

/// h5py writes bool as an 8-bit enumeration of exactly FALSE = 0 and TRUE = 1.
bool is_bool(hid_t type) {
  const Scope scope;
  if (H5Tget_class(type) != H5T_ENUM || H5Tget_size(type) != 1 || H5Tget_nmembers(type) != 2) {
    return false;
  }
  int8_t no = -1, yes = -1;
  return H5Tenum_valueof(type, "FALSE", &no) >= 0 && H5Tenum_valueof(type, "TRUE", &yes) >= 0 && no == 0 && yes == 1;
}

std::optional<at::ScalarType> integer_type(hid_t type) {
  const Scope scope;
  const bool is_signed = H5Tget_sign(type) != H5T_SGN_NONE;
  switch (H5Tget_size(type)) {
    case 1:
      return is_signed ? at::kChar : at::kByte;
    case 2:
      return is_signed ? at::kShort : at::kUInt16;
    case 4:
      return is_signed ? at::kInt : at::kUInt32;
    case 8:
      return is_signed ? at::kLong : at::kUInt64;
    default:
      return std::nullopt;
  }
}

std::optional<at::ScalarType> float_type(hid_t type) {
  const Scope scope;
  size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) {
    return std::nullopt;
  }
  const size_t size = H5Tget_size(type);
  if (size == 8 && exponent_bits == 11) return at::kDouble;
  if (size == 4 && exponent_bits == 8 && mantissa_bits == 23) return at::kFloat;
  if (size == 2 && exponent_bits == 5) return at::kHalf;
  if (size == 2 && exponent_bits == 8) return at::kBFloat16;
  return std::nullopt;
}

/// h5py stores complex numbers so: a compound of two equal floats, "r" and "i".
std::optional<at::ScalarType> complex_type(hid_t type) {
  const Scope scope;
  if (H5Tget_nmembers(type) != 2 || H5Tget_member_index(type, "r") != 0 || H5Tget_member_index(type, "i") != 1) {
    return std::nullopt;
  }
  const Handle real(H5Tget_member_type(type, 0), H5Tclose), imaginary(H5Tget_member_type(type, 1), H5Tclose);
  if (H5Tget_class(real.get()) != H5T_FLOAT || H5Tequal(real.get(), imaginary.get()) <= 0) return std::nullopt;
  const auto part = float_type(real.get());
  if (part == at::kFloat) return at::kComplexFloat;
  if (part == at::kDouble) return at::kComplexDouble;
  return std::nullopt;
}

Handle complex_layout(at::ScalarType dtype, const Where& where) {
  const hid_t part = dtype == at::kComplexFloat ? H5T_NATIVE_FLOAT : H5T_NATIVE_DOUBLE;
  const size_t size = H5Tget_size(part);
  Handle type = make(where, "make a type", H5Tclose, [&] { return H5Tcreate(H5T_COMPOUND, 2 * size); });
  checked(where, "make a type", [&] { return H5Tinsert(type.get(), "r", 0, part); });
  checked(where, "make a type", [&] { return H5Tinsert(type.get(), "i", size, part); });
  return type;
}

/// A 16-bit float, which HDF5 1.10 has no name for: a float32 with its fields moved.
Handle small_float(size_t exponent_bits, size_t bias, const Where& where) {
  Handle type = make(where, "make a type", H5Tclose, [] { return H5Tcopy(H5T_NATIVE_FLOAT); });
  const size_t mantissa_bits = 15 - exponent_bits;
  checked(where, "make a type",
          [&] { return H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits); });
  checked(where, "make a type", [&] { return H5Tset_size(type.get(), 2); });
  checked(where, "make a type", [&] { return H5Tset_ebias(type.get(), bias); });
  return type;
}

Handle bool_type(const Where& where) {
  Handle type = make(where, "make a type", H5Tclose, [] { return H5Tenum_create(H5T_NATIVE_INT8); });
  const int8_t no = 0, yes = 1;
  checked(where, "make a type", [&] { return H5Tenum_insert(type.get(), "FALSE", &no); });
  checked(where, "make a type", [&] { return H5Tenum_insert(type.get(), "TRUE", &yes); });
  return type;
}

hid_t native_id(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return H5T_NATIVE_INT8;
    case at::kByte:
      return H5T_NATIVE_UINT8;
    case at::kShort:
      return H5T_NATIVE_INT16;
    case at::kUInt16:
      return H5T_NATIVE_UINT16;
    case at::kInt:
      return H5T_NATIVE_INT32;
    case at::kUInt32:
      return H5T_NATIVE_UINT32;
    case at::kLong:
      return H5T_NATIVE_INT64;
    case at::kUInt64:
      return H5T_NATIVE_UINT64;
    case at::kFloat:
      return H5T_NATIVE_FLOAT;
    case at::kDouble:
      return H5T_NATIVE_DOUBLE;
    default:
      return H5I_INVALID_HID;
  }
}

/// Describes how a tensor of that dtype is in memory; any dtype that scalar_type may give.
Handle layout_of(at::ScalarType dtype, const Where& where) {
  if (dtype == at::kHalf) return small_float(5, 15, where);
  if (dtype == at::kBFloat16) return small_float(8, 127, where);
  if (dtype == at::kBool) return bool_type(where);
  if (dtype == at::kComplexFloat || dtype == at::kComplexDouble) return complex_layout(dtype, where);
  const hid_t native = native_id(dtype);
  TORCH_CHECK_TYPE(native != H5I_INVALID_HID, where.to_string(), ": dtype ", dtype_name(dtype),
                   " has no HDF5 type\n  have  a tensor of dtype ", dtype_name(dtype), "\n  fix   convert it first");
  return make(where, "make a type", H5Tclose, [&] { return H5Tcopy(native); });
}

/// Integers that a conversion would clip stop it; everything else converts as HDF5 does.
H5T_conv_ret_t refuse_clipping(H5T_conv_except_t kind, hid_t, hid_t to, void*, void*, void*) {
  const bool lossless_to_float = H5Tget_class(to) == H5T_FLOAT;
  if (lossless_to_float || kind == H5T_CONV_EXCEPT_TRUNCATE || kind == H5T_CONV_EXCEPT_PRECISION) {
    return H5T_CONV_UNHANDLED;
  }
  return H5T_CONV_ABORT;
}

}  // namespace

std::optional<at::ScalarType> scalar_type(hid_t type, const Where& where) {
  const auto kind = checked(where, "read its type", [&] { return H5Tget_class(type); });
  if (kind == H5T_INTEGER) return integer_type(type);
  if (kind == H5T_FLOAT) return float_type(type);
  if (kind == H5T_COMPOUND) return complex_type(type);
  if (kind != H5T_ENUM) return std::nullopt;
  if (is_bool(type)) return at::kBool;
  const Handle base = make(where, "read its type", H5Tclose, [&] { return H5Tget_super(type); });
  return integer_type(base.get());
}

std::string type_name(hid_t type, const Where& where) {
  if (const auto dtype = scalar_type(type, where)) return dtype_name(*dtype);
  const Scope scope;
  switch (H5Tget_class(type)) {
    case H5T_STRING:
      return "string";
    case H5T_COMPOUND:
      return "compound";
    case H5T_VLEN:
      return "variable-length list";
    case H5T_ARRAY:
      return "array";
    case H5T_REFERENCE:
      return "reference";
    case H5T_OPAQUE:
      return "opaque";
    case H5T_BITFIELD:
      return "bitfield";
    case H5T_FLOAT:
      return std::to_string(8 * H5Tget_size(type)) + "-bit float";
    case H5T_INTEGER:
      return std::to_string(8 * H5Tget_size(type)) + "-bit integer";
    default:
      return "unknown type";
  }
}

std::string dtype_name(at::ScalarType dtype) {
  static const std::array<std::pair<at::ScalarType, const char*>, 15> names = {{{at::kByte, "uint8"},
                                                                                {at::kChar, "int8"},
                                                                                {at::kUInt16, "uint16"},
                                                                                {at::kShort, "int16"},
                                                                                {at::kUInt32, "uint32"},
                                                                                {at::kInt, "int32"},
                                                                                {at::kUInt64, "uint64"},
                                                                                {at::kLong, "int64"},
                                                                                {at::kHalf, "float16"},
                                                                                {at::kBFloat16, "bfloat16"},
                                                                                {at::kFloat, "float32"},
                                                                                {at::kDouble, "float64"},
                                                                                {at::kComplexFloat, "complex64"},
                                                                                {at::kComplexDouble, "complex128"},
                                                                                {at::kBool, "bool"}}};
  for (const auto& [known, text] : names) {
    if (known == dtype) return text;
  }
  return c10::toString(dtype);
}

Handle tensor_type(at::ScalarType dtype, const Where& where) {
  TORCH_CHECK_TYPE(dtype != at::kBFloat16, where.to_string(),
                   ": dtype bfloat16 cannot be written\n  have  a tensor of dtype bfloat16, which "
                   "other HDF5 readers do not know\n  fix   convert it to float32 first");
  return layout_of(dtype, where);
}

Handle memory_type(hid_t file_type, at::ScalarType dtype, const Where& where) {
  const auto kind = checked(where, "read its type", [&] { return H5Tget_class(file_type); });
  if (kind == H5T_ENUM) {  // keeps the file's own member names, so that no conversion is needed
    return make(where, "read its type", H5Tclose, [&] { return H5Tget_native_type(file_type, H5T_DIR_DEFAULT); });
  }
  return layout_of(dtype, where);
}

std::vector<std::string> member_names(hid_t type, const Where& where) {
  if (H5Tget_class(type) != H5T_COMPOUND) return {};
  std::vector<std::string> names;
  const int count = checked(where, "read its members", [&] { return H5Tget_nmembers(type); });
  for (int i = 0; i < count; ++i) {
    const Scope scope;
    const std::unique_ptr<char, decltype(&H5free_memory)> name(H5Tget_member_name(type, static_cast<unsigned>(i)),
                                                               H5free_memory);
    names.emplace_back(name ? name.get() : "");
  }
  return names;
}

Handle member_type(hid_t type, const std::vector<std::string>& names, const Where& where) {
  Handle found = make(where, "read its type", H5Tclose, [&] { return H5Tcopy(type); });
  for (const std::string& name : names) {
    const int index = checked(where, "find a member", [&] { return H5Tget_member_index(found.get(), name.c_str()); });
    found = make(where, "read a member's type", H5Tclose,
                 [&] { return H5Tget_member_type(found.get(), static_cast<unsigned>(index)); });
  }
  return found;
}

Handle alone_in_compounds(Handle type, const std::vector<std::string>& names, const Where& where) {
  for (size_t i = names.size(); i-- > 0;) {
    Handle around =
        make(where, "make a type", H5Tclose, [&] { return H5Tcreate(H5T_COMPOUND, H5Tget_size(type.get())); });
    checked(where, "make a type", [&] { return H5Tinsert(around.get(), names[i].c_str(), 0, type.get()); });
    type = std::move(around);
  }
  return type;
}

bool library_converts(at::ScalarType from, at::ScalarType to) {
  return native_id(from) != H5I_INVALID_HID && native_id(to) != H5I_INVALID_HID;
}

Handle unclipped_transfer(const Where& where) {
  Handle transfer = property_list(H5P_DATASET_XFER, where);
  checked(where, "watch the conversion", [&] { return H5Pset_type_conv_cb(transfer.get(), refuse_clipping, nullptr); });
  return transfer;
}

void refuse_clipped(at::ScalarType dtype, const std::string& stored, const Where& where) {
  TORCH_CHECK_VALUE(false, where.to_string(), ": a value does not fit dtype ", dtype_name(dtype), "\n  have  stored ",
                    stored, "\n  fix   read it as ", stored, " or a float");
}

void convert(const void* from, at::ScalarType from_dtype, void* to, at::ScalarType to_dtype, size_t count,
             const Where& where) {
  const size_t from_size = c10::elementSize(from_dtype), to_size = c10::elementSize(to_dtype);
  const Handle transfer = unclipped_transfer(where);
  std::vector<char> buffer(count * std::max(from_size, to_size));
  std::memcpy(buffer.data(), from, count * from_size);
  const Scope scope;
  const herr_t status =
      H5Tconvert(native_id(from_dtype), native_id(to_dtype), count, buffer.data(), nullptr, transfer.get());
  if (status < 0) refuse_clipped(to_dtype, dtype_name(from_dtype), where);
  std::memcpy(to, buffer.data(), count * to_size);
}

}  // namespace moonhalo::io::h5
