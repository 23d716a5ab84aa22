// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Programs of torch.export; see docs/pytorch_models.md. Include it as <moonhalo/exported.h>.

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/model/registered_tensor.h"

namespace moonhalo::exported {

/// A program of torch.export as a torch::nn module with the parameters, buffers and names of the Python model. The
/// modules inside hold them, and are not called. `parallelize_module` with a plan of parameters, `fully_shard`,
/// `replicate`, optimizers and checkpoints take it as any other.
class ExportedModule : public torch::nn::Module, public detail::HasRegisteredTensorsAlone {
 public:
  /// The program of one tensor, with one tensor as result. Throws TypeError for another result. Collective if the
  /// program's operators are.
  at::Tensor forward(const at::Tensor& input);
  /// Flattened arguments (lists and dicts spread out in order) to flattened results. Collective if the program's
  /// operators are.
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& inputs);

  /// Throws NotImplementedError: the program keeps the mode in which Python exported it. Not collective.
  void train(bool on = true) override;

  struct State;
  explicit ExportedModule(std::unique_ptr<State> state);
  ~ExportedModule() override;

 private:
  std::unique_ptr<State> state_;
};

/// Reads a program that Python wrote by `torch.export.save(torch.export.export(net, (x,)), path)`. Each rank reads the
/// file for itself; not collective. `device`: where the tensors go; default: the CPU. Throws as ExportedProgram does.
std::shared_ptr<ExportedModule> load(const std::string& path, std::optional<c10::Device> device = std::nullopt);

}  // namespace moonhalo::exported
