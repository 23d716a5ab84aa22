// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <memory>
#include <string>

#include "moonhalo/engine/sharding/spec.h"

namespace torch::autograd {
struct Node;
struct PostAccumulateGradHook;
}  // namespace torch::autograd

namespace moonhalo {

/// Gradients must come back to a leaf in the form the leaf has. Called for the tensors that enter an operator with
/// ShardTensors while gradients are recorded; installs, once per tensor, a hook that turns the gradient
///  - of a ShardTensor leaf into the leaf's own cut (a sum still to be reduced stays Partial, for later bucketing),
///  - of a plain tensor into a plain tensor, reduced over the mesh.
void install_gradient_hook(const at::Tensor& tensor);
/// True for a view that was made without recording, or beside other results, and whose memory was written since.
/// PyTorch refuses to differentiate it (`grad_fn` throws), but operators that record nothing read it.
bool gives_no_gradient(const at::Tensor& tensor);
/// True if this leaf has been combined with a ShardTensor, so that such a hook brings its gradient into form.
bool has_gradient_hook(const at::Tensor& leaf);
/// The same for a result of this node.
bool has_gradient_hook(torch::autograd::Node& node);
/// Calls `replace`, which replaces all hooks of `leaf` as PyTorch's Python does when the first of its own comes, and
/// puts the engine's back.
void replace_hooks(const at::Tensor& leaf, c10::function_ref<void()> replace);
/// The program's hook that is called when backward has added to the leaf's grad; null where there is none. The engine's
/// own stays where it is.
std::unique_ptr<torch::autograd::PostAccumulateGradHook>& accumulated_hook(const at::Tensor& leaf);
/// Calls `replace`, which sets such a hook as PyTorch's Python does, in the place of any other, and puts the engine's
/// back.
void replace_accumulated_hook(const at::Tensor& leaf, c10::function_ref<void()> replace);
/// Throws NotImplementedError that begins with `op` if the program registered hooks on the parameter `name`: they stay
/// with `leaf`, and are never called once another tensor takes its place. Not collective.
void check_no_hooks(const char* op, const std::string& name, const at::Tensor& leaf);
/// The gradient of this ShardTensor leaf, which requires one, comes back as `spec` says instead of in the leaf's own
/// cut.
void place_gradient(const at::Tensor& leaf, const SpecPtr& spec);

/// From now on the gradient of this leaf, which requires one, stays a sum over the mesh dims that store the leaf
/// (Placement::stored), as it does anyway over those that replicate it; or, `keep` false, no longer.
void keep_gradient_sums(const at::Tensor& leaf, bool keep);

/// Records `backward` as the gradient function from `output` to `input`, if `input` needs one. `backward` is called
/// with the gradient of `output` and must itself be differentiable. `forward` makes the tangent of `output` out of that
/// of `input` (forward-mode differentiation); without it an input that has a tangent is refused.
void attach_backward(const at::Tensor& input, const at::Tensor& output,
                     std::function<at::Tensor(const at::Tensor&)> backward,
                     const std::function<at::Tensor(const at::Tensor&)>& forward = {});

/// True if attach_backward made the node for a plain output of a ShardTensor.
bool comes_from_shard_tensor(const torch::autograd::Node& node);

/// Like `attach_backward`, for an output whose input another rank has: the backward pass stops here, but takes part.
void attach_backward_sink(const at::Tensor& output, std::function<void(const at::Tensor&)> backward);

}  // namespace moonhalo
