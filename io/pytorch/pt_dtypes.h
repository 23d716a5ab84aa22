// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace moonhalo::io {

/// The names that torch.save gives to a dtype.
struct PtStorageType {
  const char* dtype;    ///< torch.DTYPE
  const char* storage;  ///< torch.STORAGE; null where it stores bytes and names the dtype beside them
  at::ScalarType type;
};

/// Null for a dtype that PyTorch's files do not have.
const PtStorageType* storage_type_of(at::ScalarType type);
/// "torch.FloatStorage"; an UntypedStorage holds uint8.
std::optional<at::ScalarType> dtype_of_storage(std::string_view name);
/// "torch.float32"
std::optional<at::ScalarType> dtype_of_name(std::string_view name);

}  // namespace moonhalo::io
