// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace moonhalo::exported {

/// A parameter, buffer or constant of an exported program. `tensor` may be replaced, as by a ShardTensor: the program
/// computes with it from then on.
struct ProgramTensor {
  std::string name;  ///< "blocks.0.fc.weight"
  at::Tensor tensor;
  enum class Kind : uint8_t { kParameter, kBuffer, kConstant } kind = Kind::kParameter;
  bool persistent = true;  ///< of a buffer: part of the state dict
};

struct Graph;

/// A program of torch.export, as one rank loaded it from a .pt2 file: a list of operators, which run one by one through
/// LibTorch's dispatcher, so that they work on ShardTensors and have gradients.
class ExportedProgram {
 public:
  /// Reads the file; schemas of operators and arguments are looked up here, not in each call. Not collective. `device`:
  /// where the tensors go, and what the program makes itself; default: the CPU. In a scope of DeferredInit (deferred.h)
  /// large parameters and buffers are deferred: each rank reads what it owns when they are distributed. Throws
  /// ValueError for a file that holds no program of torch.export or is damaged, and NotImplementedError for operators
  /// that LibTorch does not have and for higher-order operators other than cond and wrap_with_set_grad_enabled.
  ExportedProgram(const std::string& path, std::optional<c10::Device> device);
  ~ExportedProgram();

  std::vector<ProgramTensor>& tensors();
  /// The Python class of each module, by its name ("" is the root).
  const std::map<std::string, std::string>& classes() const;
  /// The nesting of arguments and of results, as torch.utils._pytree writes it in JSON.
  const std::string& input_spec() const;
  const std::string& output_spec() const;
  const std::vector<std::string>& input_names() const;

  /// Is called when an operator of the program has run, with the name of its module ("" is the root).
  using StepSeen = std::function<void(const std::string& module)>;

  /// Runs the program on its flattened arguments and gives its flattened results. Throws ValueError if the shape of an
  /// input is none that the program was exported for. Errors name the module and the line of the Python model, and keep
  /// their type. `seen`: empty for none. Collective if the program's operators are.
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& inputs, const StepSeen& seen = {}) const;

 private:
  std::unique_ptr<Graph> graph_;
};

}  // namespace moonhalo::exported
