// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

/// Reads a nested Lua list, row by row. Every list of one depth must have one length.
class NestedList {
 public:
  /// `who` begins the messages.
  explicit NestedList(lua_State* lua, std::string who = "tensor") : lua_(lua), who_(std::move(who)) {}

  /// int64, float64 or bool, or the dtype of the tensors that are its elements. TypeError for elements that are
  /// not numbers, ValueError for lists that differ in length.
  at::Tensor read(int index);
  /// The dtype that PyTorch gives a list of such numbers.
  at::ScalarType natural_dtype() const;

 private:
  enum class Kind { kNone, kBool, kInteger, kFloat };
  void take(int index, size_t depth);
  void refuse_names(int index, int64_t size);
  void take_number(int index);

  lua_State* lua_;
  const std::string who_;
  std::vector<int64_t> shape_;
  bool shape_known_ = false;
  bool has_tensor_ = false;
  Kind kind_ = Kind::kNone;
  std::vector<double> floats_;
  std::vector<int64_t> integers_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace moonhalo::scripting
