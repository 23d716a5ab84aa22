// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace moonhalo {

/// Does what `optimizer.step(closure)` does, and is right for complex parameters, which LibTorch's own loops train
/// wrongly (they square complex gradients): as in PyTorch's Python, a complex parameter is trained as the pairs of
/// reals that it is stored as, through view_as_real of the parameter, its gradient and its state. Parameters are plain
/// tensors or ShardTensors, each in its own cut.
///
/// Between steps the state is found under the complex parameter, complex and in its shape (LBFGS: real vectors, as in
/// Python).
/// Adagrad's sums begin at the `initial_accumulator_value` of their group, and groups added later have sums too.
///
/// Adam, AdamW, Adagrad, LBFGS, RMSprop, SGD; NotImplementedError for another optimizer with complex parameters.
/// Collective where the parameters are ShardTensors, as every operator on them.
at::Tensor optimizer_step(torch::optim::Optimizer& optimizer, std::function<at::Tensor()> closure = nullptr);

}  // namespace moonhalo
