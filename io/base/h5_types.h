// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io::h5 {

/// The tensor dtype that holds values of an HDF5 type without loss: floats of 16, 32 and 64 bits
/// (bfloat16 too), integers of 8 to 64 bits, signed or not, h5py's boolean enumeration. Byte order
/// does not matter. Nothing for other types (strings, compounds, ...).
std::optional<at::ScalarType> scalar_type(hid_t type, const Where& where);
/// "float32", "int16", "bool", or for types without a dtype "string", "compound", ...
std::string type_name(hid_t type, const Where& where);
/// The name in PyTorch's spelling: "float32", "uint8", "bool".
std::string dtype_name(at::ScalarType dtype);

/// The HDF5 type of a tensor's memory and of datasets written from it. TypeError for what HDF5
/// Moonhalo's files do not hold (complex, quantized, bfloat16).
Handle tensor_type(at::ScalarType dtype, const Where& where);
/// The type that values of `file_type` have in the memory of a tensor of its scalar_type: native
/// byte order.
Handle memory_type(hid_t file_type, at::ScalarType dtype, const Where& where);
/// The names of a compound's members; none of any other type.
std::vector<std::string> member_names(hid_t type, const Where& where);
/// The type of what `names` lead to, through compounds in compounds.
Handle member_type(hid_t type, const std::vector<std::string>& names, const Where& where);
/// The type in memory of `type` alone out of such compounds: HDF5 reads nothing else of them.
Handle alone_in_compounds(Handle type, const std::vector<std::string>& names, const Where& where);
/// True where HDF5 itself turns one dtype into the other (all but bool and the 16-bit floats).
bool library_converts(at::ScalarType from, at::ScalarType to);
/// A transfer list with which conversions fail where they would clip an integer.
Handle unclipped_transfer(const Where& where);
/// ValueError that says so.
[[noreturn]] void refuse_clipped(at::ScalarType dtype, const std::string& stored, const Where& where);
/// `count` numbers of a dtype as those of another, as HDF5 would read them; where library_converts(). ValueError for an
/// integer that does not fit.
void convert(const void* from, at::ScalarType from_dtype, void* to, at::ScalarType to_dtype, size_t count,
             const Where& where);

}  // namespace moonhalo::io::h5
