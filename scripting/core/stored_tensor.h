// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>

#include <memory>

#include "moonhalo/scripting/core/objects.h"

namespace moonhalo::scripting {

/// A tensor of a file that Lua has, but that is read only when a script or a binding uses it (check_tensor, to_tensor).
/// Functions that need a part of it ask for that first.
class StoredTensor {
 public:
  virtual ~StoredTensor() = default;
  /// A tensor of device "meta" with its shape and dtype.
  virtual at::Tensor facts() const = 0;
  virtual at::Tensor read() = 0;
  /// Reads for `target`, of the same shape: this rank's block as a ShardTensor of its spec, or all of it.
  virtual at::Tensor read_for(const at::Tensor& target) = 0;
};
template <>
inline constexpr const char* kObjectName<StoredTensor> = "StoredTensor";

/// Pushes a tensor that is read at its first use.
void push(lua_State* lua, std::shared_ptr<StoredTensor> stored);
/// Null for other values, and once it was read.
std::shared_ptr<StoredTensor> to_stored(lua_State* lua, int index);

}  // namespace moonhalo::scripting
