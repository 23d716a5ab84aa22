// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace moonhalo::io {

// The states of LibTorch's optimizers in checkpoints: options and numbers as JSON, tensors as "exp_avg/NAME" by the
// names of their parameters. What scripts save is the same.

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Every parameter's name by its position over all groups.
using ParameterNames = std::vector<std::string>;

/// Appends to `tensors`. NotImplementedError for LBFGS and for optimizers that are not LibTorch's.
nlohmann::json pack_optimizer(torch::optim::Optimizer& optimizer, const ParameterNames& names, NamedTensors& tensors);

/// A saved tensor by its name: shape and dtype, of device "meta"; undefined where there is none.
using DescribeSaved = std::function<at::Tensor(const std::string& name)>;
/// ValueError, changing nothing, unless what pack_optimizer gave is for this optimizer.
void check_optimizer(torch::optim::Optimizer& optimizer, const ParameterNames& names, const nlohmann::json& saved,
                     const DescribeSaved& describe);
/// Takes over options and states. New tensors have the layout of their parameters; `read` fills each.
void unpack_optimizer(torch::optim::Optimizer& optimizer, const ParameterNames& names, const nlohmann::json& saved,
                      const DescribeSaved& describe,
                      const std::function<void(const std::string& name, const at::Tensor& target)>& read);

/// Numbers that JSON lacks are {"$number": "inf"}.
nlohmann::json pack_number(double value);
double unpack_number(const nlohmann::json& value);

}  // namespace moonhalo::io
