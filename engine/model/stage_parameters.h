// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Where the other stages of the model are that a parameter is part of.
struct StageParameter {
  CommunicatorPtr group;  ///< one rank for each place along the pipeline
  bool counts;            ///< false: stages share it, and it counts on another rank of the group
};

/// Remembers it for as long as both the parameter and the group live.
void note_stage_parameter(const at::Tensor& parameter, const CommunicatorPtr& group, bool counts);
/// Nothing for a parameter of no pipeline.
std::optional<StageParameter> stage_parameter(const at::Tensor& parameter);

}  // namespace moonhalo
