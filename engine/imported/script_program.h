// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::jit {

/// The modules of one TorchScript file, as one rank loaded them. Each rank thread loads its own: a TorchScript module
/// holds its tensors, and ranks hold different blocks.
class ScriptProgram {
 public:
  using Values = std::vector<c10::IValue>;
  using NamedValues = std::unordered_map<std::string, c10::IValue>;
  /// Called with a module's object and the arguments of its forward.
  using ForwardCall = std::function<c10::IValue(const torch::jit::Module& module, Values arguments)>;

  /// Reads the file. In a scope of DeferredInit (deferred.h), and for the CPU, large parameters and buffers are
  /// deferred: each rank reads what it owns when they are distributed. Not collective. Throws ValueError for a file
  /// without a TorchScript module, and NotImplementedError for programs that start threads (torch.jit.fork).
  ScriptProgram(const std::string& path, std::optional<c10::Device> device);
  /// Takes a module that was made in this process, for this rank alone.
  explicit ScriptProgram(torch::jit::Module root);
  ~ScriptProgram();

  const torch::jit::Module& root() const { return root_; }

  /// From now on calls `call` where the program calls `forward` of a module. `run` still runs the program's own.
  void replace_forward_calls(ForwardCall call);

  /// Runs a method of `module` operator by operator. LibTorch's optimizer of graphs is off for this call: it stores
  /// shapes of earlier calls, and its fused kernels read memory, which a ShardTensor does not have. An error names the
  /// line of the Python model, and keeps its type. Collective if the program's operators are.
  c10::IValue run(const torch::jit::Module& module, const std::string& method, Values arguments,
                  const NamedValues& named = {}) const;
  /// Writes the file that torch.jit.load and `load` read, with whole tensors in the places of ShardTensors. Rank 0 of
  /// `world` writes. Collective over `world`.
  void save(const torch::jit::Module& module, const std::string& path, Communicator& world) const;
  /// Throws ValueError if `module` has no such method.
  const c10::FunctionSchema& schema(const torch::jit::Module& module, const std::string& method) const;

 private:
  torch::jit::Function& method_of(const torch::jit::Module& module, const std::string& method) const;

  struct Replaced;
  std::unique_ptr<Replaced> replaced_;  // types refer to these functions, so they are destroyed last
  torch::jit::Module root_;
};

/// Reads a TorchScript file but for its parameters and buffers of at least `smallest` elements, which are deferred. Not
/// collective.
torch::jit::Module load_deferred(const std::string& path, int64_t smallest);

/// A parameter or buffer of one module (not of those inside it).
struct TensorSlot {
  std::string name;
  size_t slot;
  bool is_parameter;
};
std::vector<TensorSlot> tensor_slots(const torch::jit::Module& module);
/// Replaces the tensor of a slot, and the same tensor in lists of the object: torch.nn.LSTM computes with such a list.
void set_tensor(c10::ivalue::Object& object, size_t slot, const at::Tensor& tensor);
std::vector<std::pair<std::string, torch::jit::Module>> child_modules(const torch::jit::Module& module);
/// "Linear": the name of its Python class.
std::string class_name(const torch::jit::Module& module);
/// Sets the attribute `training` of this module alone, if it has one.
void set_training(const torch::jit::Module& module, bool on);

/// `message` with the line of the Python model that TorchScript is running on this thread, unless it already has one
/// from outside PyTorch's own files: "...\n  model net.py:20: return self.fc(x)".
std::string with_model_line(const std::string& message);

}  // namespace moonhalo::jit
