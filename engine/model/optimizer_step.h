// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace moonhalo {

/// Does the same as `optimizer.step(closure)`, and also trains complex parameters correctly. LibTorch's C++ loops
/// square complex gradients, which is wrong; here, as in Python's PyTorch, a complex parameter is trained as pairs of
/// reals, through view_as_real of the parameter, its gradient and its state. Parameters are plain tensors or
/// ShardTensors of any placements.
///
/// Between steps the state is stored under the complex parameter, complex and of its shape (LBFGS: real vectors, as in
/// Python). The sums of Adagrad start at `initial_accumulator_value` of their group, also for groups that are added
/// later.
///
/// Supports Adam, AdamW, Adagrad, LBFGS, RMSprop and SGD. Throws NotImplementedError for another optimizer with complex
/// parameters. Collective if the parameters are ShardTensors.
at::Tensor optimizer_step(torch::optim::Optimizer& optimizer, std::function<at::Tensor()> closure = nullptr);

}  // namespace moonhalo
