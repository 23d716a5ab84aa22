// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/local_map.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {
namespace {

const std::optional<Placements>& entry(const std::vector<std::optional<Placements>>& list, size_t i) {
  static const std::optional<Placements> none;
  return i < list.size() ? list[i] : none;
}

std::string text_of(const Placements& placements) {
  std::string text;
  for (const Placement& one : placements) text += (text.empty() ? "" : ", ") + one.to_string();
  return "{" + text + "}";
}

Placements gradient_of(const at::Tensor& input, const LocalMapOptions& options, size_t position) {
  const Placements own = spec(input)->placements();
  Placements gradient = without_partial(spec(input))->placements();
  for (size_t m = 0; m < gradient.size(); ++m) {
    // The gradient of a sum is that of each of its addends: replicated.
    if (!own[m].is_replicate()) continue;
    bool parts = false, wholes = false;
    for (const auto& out : options.out_placements) {
      if (out) (out->at(m).is_replicate() ? wholes : parts) = true;
    }
    TORCH_CHECK_VALUE(!(parts && wholes && input.requires_grad()), "local_map: argument ", position + 1,
                      " is replicated and needs a gradient; of the results some are cut and some replicated",
                      "\n  fix   say what its gradient is with in_grad_placements");
    if (parts) gradient[m] = partial();
  }
  return gradient;
}

}  // namespace

std::vector<at::Tensor> local_map(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const LocalMapOptions& options) {
  MeshPtr mesh = options.mesh;
  for (const at::Tensor& input : inputs) {
    if (!mesh && is_shard_tensor(input)) mesh = spec(input)->mesh();
  }
  if (!mesh) return function(inputs);
  const auto check_count = [&](const Placements& placements, const char* what, size_t i) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh->ndim(), "local_map: ", what, " ", i + 1, " has ",
                      placements.size(), " placements for ", mesh->to_string());
  };
  for (size_t i = 0; i < options.out_placements.size(); ++i) {
    if (options.out_placements[i]) check_count(*options.out_placements[i], "result", i);
  }
  std::vector<at::Tensor> blocks = inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& required = entry(options.in_placements, i);
    if (!inputs[i].defined() || (!required && !is_shard_tensor(inputs[i]))) continue;
    at::Tensor input = inputs[i];
    const bool plain = !is_shard_tensor(input);
    if (plain) input = from_local(input, replicated(mesh, input.sizes()));
    if (required) {
      check_count(*required, "argument", i);
      const SpecPtr to = make_spec(mesh, input.sizes(), inherit_block_sizes(*required, *spec(input)));
      TORCH_CHECK_VALUE(plain || options.redistribute_inputs || to == spec(input), "local_map: argument ", i + 1,
                        " has placements ", text_of(spec(input)->placements()), ", in_placements says ",
                        text_of(*required), "\n  fix   redistribute it, or give redistribute_inputs = true");
      input = redistribute(input, to);
    }
    const auto& gradient = entry(options.in_grad_placements, i);
    blocks[i] = to_local(input, gradient ? *gradient : gradient_of(input, options, i));
  }
  std::vector<at::Tensor> results = function(blocks);
  for (size_t i = 0; i < options.out_placements.size(); ++i) {
    if (!options.out_placements[i]) continue;
    TORCH_CHECK_VALUE(i < results.size(), "local_map: out_placements is for ", i + 1, " results, there are ",
                      results.size());
    if (results[i].defined()) results[i] = from_local(results[i], mesh, *options.out_placements[i]);
  }
  return results;
}

}  // namespace moonhalo
