// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Models that Python saved as TorchScript; see docs/pytorch_models.md. Include it as <moonhalo/jit.h>.

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/model/parallelize.h"
#include "moonhalo/engine/model/registered_tensor.h"

namespace moonhalo::jit {

/// A module of a TorchScript file, as a torch::nn module with the parameters, buffers, names and children that it has
/// in Python. `parallelize_module`, `fully_shard`, `replicate`, optimizers and checkpoints take it as any other. When
/// they replace a parameter or buffer, the TorchScript program computes with the new one. The plan's entries for the
/// input and output of a child take effect where the program calls the child.
class ScriptModule : public torch::nn::Module, public detail::HasRegisteredTensorsAlone {
 public:
  /// The program's forward of one tensor, with one tensor as result. Throws TypeError for another result. Collective if
  /// the program's operators are.
  at::Tensor forward(const at::Tensor& input);
  /// Runs a method with any arguments: `run({x, timestep})`, `run({x}, "encode")`. An error names the line of the
  /// Python model, and keeps its type. Collective if the program's operators are.
  c10::IValue run(std::vector<c10::IValue> arguments, const std::string& method = "forward");
  /// Sets the mode of this module and those below, in the program too. Not collective.
  void train(bool on = true) override;

  struct State;
  explicit ScriptModule(std::unique_ptr<State> state);
  ~ScriptModule() override;

 private:
  friend struct State;
  std::unique_ptr<State> state_;
};

/// Reads a model that Python wrote by `torch.jit.script(net).save(path)` or `torch.jit.trace(net, x).save(path)`. Each
/// rank reads the file for itself; not collective. `device`: where the tensors go; default: where they were saved.
/// Throws ValueError for a file without a TorchScript module, and NotImplementedError for a program that starts threads
/// (torch.jit.fork).
std::shared_ptr<ScriptModule> load(const std::string& path, std::optional<c10::Device> device = std::nullopt);

}  // namespace moonhalo::jit
