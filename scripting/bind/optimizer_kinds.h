// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

/// Describes one of LibTorch's optimizers as seen from Lua: PyTorch's names, defaults and per-parameter state.
struct OptimizerKind {
  const char* name;
  std::vector<std::string> options;
  /// The options of a table over those of `base`; throws for values out of range.
  std::unique_ptr<torch::optim::OptimizerOptions> (*read_options)(const OptimizerKind&, lua_State*, const Options&,
                                                                  const torch::optim::OptimizerOptions& base);
  /// Pushes a table of all options, or of all state.
  void (*push_options)(lua_State*, torch::optim::OptimizerOptions&);
  void (*push_state)(lua_State*, torch::optim::OptimizerParamState&);
  /// From such a table; tensors are copied into the placement of `parameter`, which is the optimizer's `number`-th,
  /// from 1. A tensor that a step with `options` needs is an error when it is missing.
  std::unique_ptr<torch::optim::OptimizerParamState> (*read_state)(lua_State*, int index, int64_t number,
                                                                   const at::Tensor& parameter,
                                                                   const torch::optim::OptimizerOptions& options);
  std::unique_ptr<torch::optim::OptimizerOptions> (*defaults)();
  std::unique_ptr<torch::optim::Optimizer> (*make)(const std::vector<torch::optim::OptimizerParamGroup>&,
                                                   const torch::optim::OptimizerOptions&);
};

/// By name; ValueError with the nearest name for an unknown one.
const OptimizerKind& find_optimizer_kind(const std::string& name);

}  // namespace moonhalo::scripting
