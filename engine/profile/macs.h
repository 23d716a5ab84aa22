// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string_view>

namespace moonhalo {

/// Multiplications of LibTorch's operators, each with its addition (MACs). Not collective.

/// Says how the MACs of an operator follow from the shapes of its arguments.
enum class MacRule : uint8_t {
  kNone,  ///< not counted: few, or those of operators within
  kProduct,
  kAddedProduct,
  kConvolution,
  kConvolutionBackward,
  kAttention,
  kAttentionBackward
};
/// The rule of an operator: matrix products, convolutions, fused attention.
MacRule mac_rule(std::string_view op);
/// The MACs of a call with these arguments. 0 where one is a ShardTensor: its call on the block counts.
int64_t count_macs(MacRule rule, c10::ArrayRef<const c10::IValue> arguments);

}  // namespace moonhalo
