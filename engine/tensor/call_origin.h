// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>

#include <array>
#include <cstdint>
#include <string>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// By content: mesh, global shape, blocks and partials, not the pointer that a decision's key holds.
uint64_t fingerprint_of(const ShardSpec& spec);
/// ShardTensors that are sent together: their specs and, as far as ranks must have the same, their origins.
uint64_t fingerprint_of(at::TensorList tensors);
/// The specs of ShardTensors, for messages.
std::string specs_of(at::TensorList tensors);
/// Operators whose result holds its source's elements in their order. LibTorch calls them where memory requires it,
/// which differs from rank to rank: a gradient is copied where its strides are not those of its tensor, reshaped
/// with a copy or without.
bool keeps_value(const std::string& op);
/// The operator (in place or not, which LibTorch chooses by memory too), the specs and dtypes of its tensors and,
/// unless `tensors_only`, its other arguments.
uint64_t fingerprint_of(const std::string& op, at::ArrayRef<c10::IValue> arguments, bool tensors_only);

/// Gives a tensor that all ranks have just made together an origin of its own; `tag` says how. Called by every rank of
/// its mesh.
void set_new_origin(const at::Tensor& made, uint64_t tag);

/// The calls of this thread that made tensors, as far as they are remembered, by the origin of what they made.
class CallLog {
 public:
  static CallLog& of_this_thread();
  /// `op` made a tensor of this origin out of one of origin `first`; the name lives as long as the process.
  void add(uint64_t origin, uint64_t first, const c10::OperatorName& op) {
    made_[origin % made_.size()] = {origin, first, &op};
  }
  /// ", made by aten::mean <- aten::mul": the calls behind a tensor of this origin; "" when none is remembered.
  std::string made_by(uint64_t origin) const;
  /// The origin of what a tensor's values were taken from: its own, or that behind operators which only add dims.
  /// 0 where ranks need not have the same.
  uint64_t origin_of_values(uint64_t origin) const;
  /// The origin of a ShardTensor as far as ranks must have the same. In forward-mode differentiation LibTorch
  /// copies tangents where their memory requires it, on one rank and not on another: a thread that has used it
  /// compares no origins any more.
  uint64_t shared_origin(uint64_t origin) const { return forward_mode_ ? 0 : origin; }
  void forward_mode_begins() { forward_mode_ = true; }

 private:
  struct Made {
    uint64_t origin = 0, first = 0;
    const c10::OperatorName* op = nullptr;
  };
  std::array<Made, 512> made_{};
  bool forward_mode_ = false;
};

}  // namespace moonhalo
