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

/// Says how a model is divided: data only, the same for Lua modules, torch::nn modules and JSON files.
///
/// Names are dotted ("blocks.0.fc1"). A name in a plan is one of
///  - an exact name,
///  - a pattern with * or ? inside the parts between dots: "blocks.*.fc1" ("*" alone is one part),
///  - a regular expression over the whole name, when it holds \ or %: "blocks\\.\\d+\\.fc1", or "blocks%.%d+%.fc1";
///    what it may hold: name_pattern.h.
/// Where several fit, the exact name wins, then the pattern with most literal characters; two equally good entries that
/// differ are an error.
using Placements = std::vector<Placement>;  ///< one per mesh dim

/// Says what happens to one argument or result of a module on its way in or out.
struct ArgumentPlan {
  std::optional<Placements> plain = {};   ///< what a plain tensor is: every rank's block; replicated when absent
  std::optional<Placements> wanted = {};  ///< what it becomes; as it is when absent
  bool local = false;                     ///< then its local block is taken out
  std::optional<Placements> gradient =
      {};              ///< what its gradient becomes on the way back; the argument's own when absent
  bool async = false;  ///< its messages travel while those of the other arguments are started
  bool operator==(const ArgumentPlan&) const = default;
};

/// Arguments or results of one module, by position (nullopt: untouched) and by name.
struct SignaturePlan {
  std::vector<std::optional<ArgumentPlan>> by_position = {};
  std::map<std::string, ArgumentPlan> by_name = {};
  bool empty() const { return by_position.empty() && by_name.empty(); }
  bool operator==(const SignaturePlan&) const = default;
};

/// Says what is done to one module, in PyTorch's words and with its defaults. For a mesh of one dimension.
struct ParallelStyle {
  enum class Kind : uint8_t { kColwise, kRowwise, kPairwise, kSequence, kPrepareInput, kPrepareOutput, kCustom };
  using Layouts = std::vector<std::optional<Placement>>;
  Kind kind = Kind::kColwise;
  std::optional<Layouts> input_layouts = {}, desired_input_layouts = {};
  std::optional<Layouts> output_layouts = {}, desired_output_layouts = {};
  std::map<std::string, std::optional<Placement>> input_kwarg_layouts = {}, desired_input_kwarg_layouts = {};
  std::optional<bool> use_local_output = {};
  int64_t sequence_dim = 1;
  int64_t custom = -1;  ///< kCustom: number that the caller gave
  bool operator==(const ParallelStyle&) const = default;
};
const char* name(ParallelStyle::Kind kind);

struct ParallelPlan {
  std::vector<std::pair<std::string, Placements>> parameters = {};  ///< "fc1.weight" (buffers too)
  std::vector<std::pair<std::string, Placements>> gradients = {};   ///< of parameters, where not the parameter's own
  std::vector<std::pair<std::string, SignaturePlan>> inputs = {};   ///< "fc1"; "" is the root
  std::vector<std::pair<std::string, SignaturePlan>> outputs = {};
  std::vector<std::pair<std::string, ParallelStyle>> styles = {};
};

/// From JSON: {"parameter": {"fc1.weight": ["S(0)"]}, "forward": {"fc1.input": [["R"]], "fc1.output": [null,
/// ["S(1)"]]}}, or names and styles {"fc1": "ColwiseParallel", "fc2": {"style": "RowwiseParallel", "output_layouts":
/// "S(1)"}}, or one style. Instead of a list of placements for a parameter or an argument: {"placements": ["S(0)"],
/// "grad": ["R"], "async": true}, of which any may be left out; for an argument also "plain": ["S(0)"] and "local":
/// true (ArgumentPlan). Placements are "Replicate" or "R", "Shard(0)", "S(0)" or "S(0, {5, 4})", "Partial(sum)" or "P";
/// one stands for a list on a mesh of one dim. ValueError for unknown keys (with the nearest), wrong types and invalid
/// JSON.
ParallelPlan parse_plan(const std::string& json, const std::string& source = "plan");
/// Reads a file of the above; comments are allowed.
ParallelPlan load_plan(const std::string& path);
/// The JSON of a plan, which parse_plan reads.
std::string to_json(const ParallelPlan& plan);
Placement parse_placement(const std::string& text);

// A plan meets a model

struct TensorFacts {
  std::string name;
  std::vector<int64_t> shape;
};
/// One module, as the plan sees it. `kinds`: its class and what that extends ("Linear", ...).
struct ModuleFacts {
  std::string name;
  std::vector<std::string> kinds;
  std::vector<TensorFacts> tensors;  ///< its own parameters and buffers
};

enum class Unmatched : uint8_t { kError, kWarn };

/// The part of a plan that one module gets.
struct ModulePlan {
  struct Tensor {
    Placements placements;  ///< Replicate where the plan is silent
    std::optional<Placements> gradient = {};
    bool listed = false;
  };
  std::map<std::string, Tensor> tensors;
  SignaturePlan inputs, outputs;
  std::vector<int64_t> custom;  ///< numbers of the custom styles
};

/// One ModulePlan per module, in order. No communication, every rank alike. ValueError for names that match nothing
/// (with the nearest; a warning from rank 0 if `unmatched` says so), dims out of range, a number of placements that is
/// not the mesh's, styles on a mesh of several dims or on a class that they cannot split.
std::vector<ModulePlan> resolve(const ParallelPlan& plan, const std::vector<ModuleFacts>& modules,
                                const DeviceMesh& mesh, Unmatched unmatched = Unmatched::kError);

/// Writes `resolved` as a plan without patterns and styles: every tensor that an entry named, every module whose
/// arguments move. Custom styles are not in it.
ParallelPlan spelt_out(const std::vector<ModulePlan>& resolved, const std::vector<ModuleFacts>& modules);

}  // namespace moonhalo
