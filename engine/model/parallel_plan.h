// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Describes how a model is distributed, as data. Lua modules, torch::nn modules and JSON files use the same plan.
///
/// Names are dotted ("blocks.0.fc1"). A name in a plan is one of
///  - an exact name,
///  - a pattern with * or ? inside the parts between dots: "blocks.*.fc1" ("*" alone matches one part),
///  - a regular expression over the whole name, if it contains \ or %: "blocks\\.\\d+\\.fc1", or "blocks%.%d+%.fc1";
///    name_pattern.h describes its syntax.
/// If several match, the exact name wins, then the pattern with most literal characters. Two equally good entries that
/// differ are an error.
using Placements = std::vector<Placement>;  ///< one per mesh dim

/// Describes how one argument or result of a module is redistributed.
struct ArgumentPlan {
  std::optional<Placements> plain = {};     ///< meaning of a plain tensor: each rank's block; default: replicated
  std::optional<Placements> required = {};  ///< target placements; default: unchanged
  bool local = false;                       ///< afterwards, take the local block
  /// Placements of its gradient; default: the argument's own.
  std::optional<Placements> gradient = {};
  bool async = false;  ///< its messages are in flight while those of other arguments start
  bool operator==(const ArgumentPlan&) const = default;
};

/// The arguments or results of one module, by position (nullopt: unchanged) and by name.
struct SignaturePlan {
  /// Per argument or result by position and by name; true if there are none.
  std::vector<std::optional<ArgumentPlan>> by_position = {};
  std::map<std::string, ArgumentPlan> by_name = {};
  bool empty() const { return by_position.empty() && by_name.empty(); }
  bool operator==(const SignaturePlan&) const = default;
};

/// A parallel style for one module, with PyTorch's names and defaults. For a mesh of one dim.
struct ParallelStyle {
  /// The styles of PyTorch; kCustom: a function of the caller.
  enum class Kind : uint8_t { kColwise, kRowwise, kPairwise, kSequence, kPrepareInput, kPrepareOutput, kCustom };
  /// One placement per argument or result; nullopt: it is not redistributed.
  using Layouts = std::vector<std::optional<Placement>>;
  /// The style, and its options with PyTorch's names. Options that are absent have the style's default.
  Kind kind = Kind::kColwise;
  std::optional<Layouts> input_layouts = {}, desired_input_layouts = {};
  std::optional<Layouts> output_layouts = {}, desired_output_layouts = {};
  std::map<std::string, std::optional<Placement>> input_kwarg_layouts = {}, desired_input_kwarg_layouts = {};
  std::optional<bool> use_local_output = {};
  int64_t sequence_dim = 1;
  int64_t custom = -1;  ///< kCustom: number given by the caller
  bool operator==(const ParallelStyle&) const = default;
};
/// Returns "ColwiseParallel" and so on. Not collective.
const char* name(ParallelStyle::Kind kind);

/// The whole plan: lists of names, or patterns, and what is done there.
struct ParallelPlan {
  std::vector<std::pair<std::string, Placements>> parameters = {};  ///< "fc1.weight"; parameters and buffers
  /// Placements of parameters' gradients; default: those of the parameter.
  std::vector<std::pair<std::string, Placements>> gradients = {};
  std::vector<std::pair<std::string, SignaturePlan>> inputs = {};   ///< "fc1"; "" is the root
  std::vector<std::pair<std::string, SignaturePlan>> outputs = {};  ///< as inputs, for results
  std::vector<std::pair<std::string, ParallelStyle>> styles = {};   ///< "fc1"; on a mesh of one dim
};

/// Parses a plan from JSON: {"parameter": {"fc1.weight": ["S(0)"]}, "forward": {"fc1.input": [["R"]], "fc1.output":
/// [null, ["S(1)"]]}}, or names and styles {"fc1": "ColwiseParallel", "fc2": {"style": "RowwiseParallel",
/// "output_layouts": "S(1)"}}, or one style. The placements of a parameter or argument may also be an object:
/// {"placements": ["S(0)"], "grad": ["R"], "async": true}, all keys optional; for an argument also "plain": ["S(0)"]
/// and "local": true (ArgumentPlan). Placements are "Replicate" or "R", "Shard(0)", "S(0)" or "S(0, {5, 4})",
/// "Partial(sum)" or "P"; on a mesh of one dim a single placement may stand for a list. Throws ValueError for unknown
/// keys (with the nearest one), wrong types and invalid JSON. Not collective.
ParallelPlan parse_plan(const std::string& json, const std::string& source = "plan");
/// Reads a plan from a JSON file; comments are allowed. Throws as parse_plan. Not collective: each rank reads the file.
ParallelPlan load_plan(const std::string& path);
/// Returns a plan as JSON that parse_plan reads. Not collective.
std::string to_json(const ParallelPlan& plan);
/// Parses one placement: "S(0)", "Replicate". Throws ValueError for other strings. Not collective.
Placement parse_placement(const std::string& text);

// Matching a plan against a model

/// A tensor of a module: its `name` in it and its `shape`.
struct TensorFacts {
  std::string name;
  std::vector<int64_t> shape;
};
/// One module, as input of `resolve`: its `name` in the model and its tensors. `kinds`: its class and the base classes
/// ("Linear", ...).
struct ModuleFacts {
  std::string name;
  std::vector<std::string> kinds;
  std::vector<TensorFacts> tensors;  ///< its own parameters and buffers
};

/// The treatment of names that match nothing: an error, or a warning on rank 0.
enum class Unmatched : uint8_t { kError, kWarn };

/// The part of a plan that applies to one module.
struct ModulePlan {
  /// The placements of a tensor and of its `gradient`; `listed`: an entry of the plan names it.
  struct Tensor {
    Placements placements;  ///< Replicate if the plan does not list it
    std::optional<Placements> gradient = {};
    bool listed = false;
  };
  /// The plan of each tensor by name, and those of the module's arguments and results.
  std::map<std::string, Tensor> tensors;
  SignaturePlan inputs, outputs;
  std::vector<int64_t> custom;  ///< numbers of the custom styles
};

/// Returns one ModulePlan per module, in order. Not collective; equal on all ranks. Throws ValueError for names that
/// match nothing (with the nearest one; rank 0 warns instead if `unmatched` is kWarn), dims out of range, a number of
/// placements that is not the number of mesh dims, and styles on a mesh of several dims or on a class that they do not
/// support.
std::vector<ModulePlan> resolve(const ParallelPlan& plan, const std::vector<ModuleFacts>& modules,
                                const DeviceMesh& mesh, Unmatched unmatched = Unmatched::kError);

/// Returns `resolved` as a plan without patterns and styles: every tensor that an entry named and every module whose
/// arguments are redistributed. Custom styles are omitted. Not collective.
ParallelPlan spelt_out(const std::vector<ModulePlan>& resolved, const std::vector<ModuleFacts>& modules);

}  // namespace moonhalo
