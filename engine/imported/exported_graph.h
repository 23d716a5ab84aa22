// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/imported/exported_program.h"

namespace moonhalo::exported {

constexpr int kNoSlot = -1;

/// Where an argument of an operator comes from. Values of a run are in slots.
struct Argument {
  enum class Kind : uint8_t { kConstant, kSlot, kTensors, kOptionalTensors, kInts, kFloats, kBools, kNumberAsTensor };
  Kind kind = Kind::kConstant;
  c10::IValue constant = {};
  int slot = kNoSlot;
  /// Elements of a list: a slot, or kNoSlot and a constant (None in a list of optional tensors).
  std::vector<std::pair<int, c10::IValue>> elements = {};
  bool as_double = false;  ///< a number for an argument of type float
};

struct SubGraph;

/// A module that Python called: its name, and the call of it ("fc@1" for the second one).
struct ModuleCall {
  std::string name, call;
};

struct Step {
  enum class Kind : uint8_t { kOperator, kNumber, kSize, kNumel, kAssert, kCond, kSetGrad };
  Kind kind = Kind::kOperator;
  std::optional<c10::OperatorHandle> op = {};
  std::string target;  ///< for kNumber and errors
  std::vector<Argument> arguments = {};
  std::vector<std::vector<int>> outputs = {};  ///< for each result a slot, or several for a list
  std::vector<bool> output_is_list = {};
  std::vector<int> last_uses = {};  ///< slots that are empty from now on
  std::vector<ModuleCall> modules;  ///< that called it, the innermost last; without the root
  std::string line;                 ///< "net.py:20: return self.fc(x)"
  std::vector<std::shared_ptr<const SubGraph>> graphs = {};

  /// "blocks.0.fc", "" for the root.
  std::string module() const { return modules.empty() ? "" : modules.back().name; }
};

/// A graph inside another one, for cond.
struct SubGraph {
  std::vector<int> inputs;
  std::vector<Step> steps;
  std::vector<Argument> outputs;
  int slots = 0;
};

/// The shape that an input must have: for each dim a size, or a symbol, or nothing that can be checked.
struct InputShape {
  std::string name;
  struct Dim {
    std::optional<int64_t> size = {};
    std::string symbol = {};
  };
  bool is_tensor = false;
  std::vector<Dim> dims = {};
  std::optional<c10::IValue> constant = {};  ///< the only value that the program was exported for
};

struct Range {
  std::optional<int64_t> min = {}, max = {};
};

struct Graph {
  SubGraph body;
  std::vector<ProgramTensor> tensors;
  std::vector<int> tensor_slots;  ///< one for each of `tensors`
  std::vector<InputShape> inputs;
  std::vector<int> input_slots;
  std::vector<std::string> input_names;
  std::map<std::string, Range> ranges;  ///< of symbols
  std::vector<Argument> results;
  std::vector<std::pair<int, size_t>> buffer_writes;  ///< slot, and index in `tensors`
  std::vector<std::pair<int, size_t>> input_writes;   ///< slot, and index in `inputs`
  std::map<std::string, std::string> classes;
  std::string input_spec, output_spec;
};

/// The JSON and tensors of a .pt2 file.
struct Archive {
  std::string program;  ///< JSON
  std::map<std::string, at::Tensor> tensors;
};
Archive read_archive(const std::string& path, const c10::Device& device);
/// Looks up operators and arguments. Throws nlohmann's exceptions for JSON of another form.
Graph build_graph(const nlohmann::json& program, const Archive& archive, const c10::Device& device);

/// The type of the schema of torch.export with this number. Throws ValueError for others.
at::ScalarType scalar_type(int64_t number);
/// `_operator.add` and the like on numbers.
c10::IValue compute_number(const std::string& target, const std::vector<c10::IValue>& arguments);
bool is_number_operator(const std::string& target);

}  // namespace moonhalo::exported
