// SPDX-License-Identifier: Apache-2.0
// The ways into a ShardTensor and out of it.
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/engine/tensor/front_parameters.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/scripting/python/module.h"

namespace moonhalo::python {

/// Tells the engine which tensors `block` was computed from are weights of a torch.nn.Module.
void note_weights_behind(const at::Tensor& block) {
  if (!c10::GradMode::is_enabled() || !block.requires_grad()) return;
  const py::object parameter = py::module_::import("torch.nn").attr("Parameter");
  const std::vector<at::Tensor> leaves = plain_leaves_behind(block);
  for (const at::Tensor& leaf : leaves) {
    if (!meaning_of(leaf).is_parameter && py::isinstance(py::cast(leaf), parameter)) note_parameters({leaf});
  }
  // A reentrant checkpoint computes in backward from leaves of its own, whose gradients it hands to what is not seen
  // here.
  const bool cut_off = leaves.empty() || std::any_of(leaves.begin(), leaves.end(), [](const at::Tensor& leaf) {
                         return !meaning_of(leaf).is_parameter;
                       });
  TORCH_CHECK_NOT_IMPLEMENTED(
      !cut_off || torch::autograd::get_current_graph_task_id() < 0,
      "from_local: in the backward pass the weights cannot be seen that this block was computed from, so the ranks' "
      "addends of their gradients would not be summed\n  have  a block of shape ",
      block.sizes(), "\n  fix   torch.utils.checkpoint.checkpoint(..., use_reentrant=False)");
}

namespace {

/// local_map of a function of Python: it takes blocks and returns a list of tensors, None for what is none.
std::vector<at::Tensor> map_blocks(const py::function& function, const std::vector<std::optional<at::Tensor>>& inputs,
                                   const OptionalPlacements& out, const OptionalPlacements& in,
                                   const OptionalPlacements& gradients, bool redistributes, const MeshPtr& mesh) {
  const auto call = [&](const std::vector<at::Tensor>& blocks) {
    py::list given;
    for (const at::Tensor& block : blocks) given.append(block.defined() ? py::cast(block) : py::none());
    std::vector<at::Tensor> results;
    for (const py::handle result : function(given)) {
      results.push_back(result.is_none() ? at::Tensor() : result.cast<at::Tensor>());
      if (results.back().defined() && !is_shard_tensor(results.back())) note_weights_behind(results.back());
    }
    return results;
  };
  std::vector<at::Tensor> tensors;
  for (const auto& input : inputs) tensors.push_back(input.value_or(at::Tensor()));
  return local_map(call, tensors,
                   {.in_placements = in,
                    .out_placements = out,
                    .in_grad_placements = gradients,
                    .redistribute_inputs = redistributes,
                    .mesh = mesh});
}

void define_hooks(py::module_& m) {
  m.def("_replace_hooks", [](const at::Tensor& tensor, const py::function& replace) {
    moonhalo::replace_hooks(tensor, [&] { replace(); });
  });
  m.def("_replace_accumulated_hook", [](const at::Tensor& leaf, const py::function& replace) {
    moonhalo::replace_accumulated_hook(leaf, [&] { replace(); });
  });
}

}  // namespace

void define_tensors(py::module_& m) {
  using at::Tensor;
  m.def("is_shard_tensor", &is_shard_tensor, py::arg("tensor"), "Whether a tensor is a ShardTensor. Not collective.");
  m.def(
      "from_local",
      [](const Tensor& local, const MeshPtr& mesh, const Placements& placements) {
        note_weights_behind(local);
        const ScopedRelease released;
        return from_local(local, mesh, placements);
      },
      py::arg("local"), py::arg("mesh"), py::arg("placements"),
      "Makes a ShardTensor of each rank's block. Block sizes are exchanged. Collective over the mesh. Differentiable: "
      "parameters that the blocks were computed from get the sum of their gradients. ValueError on every rank for "
      "blocks "
      "that differ in dtype or form no grid.");
  for (const bool scatter : {true, false}) {
    m.def(
        scatter ? "scatter_tensor" : "distribute_tensor",
        [scatter](const std::optional<Tensor>& full, const MeshPtr& mesh, const Placements& placements, int64_t src) {
          const Tensor given = full.value_or(Tensor());
          if (given.defined()) note_weights_behind(given);
          const ScopedRelease released;
          return scatter ? scatter_tensor(given, mesh, placements, src)
                         : distribute_tensor(given, mesh, placements, src);
        },
        py::arg("full"), py::arg("mesh"), py::arg("placements"), py::arg("src") = 0,
        scatter ? "Distributes the tensor of mesh rank `src`; the others pass None. Gradients return to it. Collective."
                : "Distributes the tensor of mesh rank `src`; the others pass None. Collective over the mesh.");
  }
  m.def(
      "redistribute",
      [](const Tensor& tensor, const Placements& placements, const MeshPtr& mesh) {
        return mesh == nullptr ? redistribute(tensor, placements) : redistribute(tensor, mesh, placements);
      },
      py::arg("tensor"), py::arg("placements"), py::arg("mesh") = py::none(), Released(),
      "The same global tensor with other placements, or on another mesh of the same ranks. Collective.");
  m.def("full_tensor", &full_tensor, py::arg("tensor"), Released(),
        "The whole tensor, plain, on every rank. Collective over the mesh. Differentiable. TypeError for a plain "
        "tensor.");
  m.def(
      "to_local",
      [](const Tensor& tensor, const std::optional<Placements>& gradient) {
        return gradient ? to_local(tensor, *gradient) : to_local(tensor);
      },
      py::arg("tensor"), py::arg("grad_placements") = py::none(), Released(),
      "This rank's block as a plain tensor, without a copy. Differentiable. Not collective. TypeError for a plain "
      "tensor.");
  m.def(
      "placements", [](const Tensor& tensor) { return spec(tensor)->placements(); }, py::arg("tensor"),
      "The placements of a ShardTensor, one for each dim of its mesh. Not collective. TypeError for a plain "
      "tensor.");
  m.def(
      "mesh_of", [](const Tensor& tensor) { return spec(tensor)->mesh(); }, py::arg("tensor"),
      "The mesh of a ShardTensor. Not collective. TypeError for a plain tensor.");
  define_hooks(m);
  m.def("manual_seed", &manual_seed, py::arg("seed"),
        "Seeds the random numbers of ShardTensors of this rank. The same on all ranks; not collective.");
  m.def("_local_map", &map_blocks);
}

}  // namespace moonhalo::python
