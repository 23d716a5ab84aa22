// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// The tensors among the arguments, or among the results, of one call of a module. Undefined tensors stand for
/// other values, which stay unchanged. Arguments are `by_position` or `by_name`, as the caller gave them.
struct CallTensors {
  std::vector<at::Tensor> by_position = {};
  std::map<std::string, at::Tensor> by_name = {};
};

/// Functions that run before and after a module's forward. They may replace tensors: `before` those of the arguments,
/// `after` those of the results.
struct CallHooks {
  std::function<void(CallTensors& arguments)> before = {};
  std::function<void(CallTensors& results)> after = {};
};

/// A function that runs in the place of a module's forward. `forward` is what ran before.
using Forward = std::function<CallTensors(const CallTensors& arguments)>;
using ForwardWrapper = std::function<CallTensors(const Forward& forward, const CallTensors& arguments)>;

/// Records a call of parallelize_module: the `mesh`, the `plan` without patterns and styles, and the names of the
/// modules that `custom` styles changed.
struct Parallelized {
  MeshPtr mesh;
  ParallelPlan plan;
  std::vector<std::string> custom = {};
};

class ModuleTree;
/// Shares a tree. It does not keep the module.
using ModuleTreePtr = std::shared_ptr<ModuleTree>;

/// A module of any kind, as parallelize_module, fully_shard, replicate, patch and EMA see it. torch::nn implements it
/// in torch_module_tree.cpp, the Lua modules in scripting/bind/module_tree.cpp. Example:
///
///     Net                      named_modules(tree): "" Net, "fc1" Linear, "act" GELU, "fc2" Linear
///      |- fc1: Linear 6 -> 4   children() of Net: {"fc1", ...}, {"act", ...}, {"fc2", ...}; tensors() of Net: none
///      |- act: GELU            tensors() of fc1: {"weight", [4, 6], true}, {"bias", [4], true}
///      '- fc2: Linear 4 -> 6   fc1.replace_tensor("weight", block): from now on fc1 computes with `block`
///
/// A tree refers to the module and does not own it. Trees are made when they are needed and may be made again: two
/// trees of one module have the same identity, and what one replaces or registers holds for the module. Not collective.
class ModuleTree {
 public:
  /// A module right below this one, and its `name` there: `module`.
  struct Child {
    std::string name;
    ModuleTreePtr module;
  };
  /// A parameter or buffer of this module: its `name` there and its `value`.
  struct Tensor {
    std::string name;
    at::Tensor value;
    bool is_parameter = true;       ///< false: a buffer
    bool shared_by_stages = false;  ///< several stages of a pipeline hold it, so all cut it in the same way
  };
  virtual ~ModuleTree() = default;

  /// The address of the module. A module in several places of a model has one.
  virtual const void* identity() const = 0;
  /// The module's class, then the classes that it extends: {"Linear"}. Styles and messages use these names.
  virtual std::vector<std::string> kinds() const = 0;
  virtual std::vector<Child> children() const = 0;
  /// The module's own parameters, then its own buffers, in the order of registration; only defined tensors.
  virtual std::vector<Tensor> tensors() const = 0;
  /// Puts `tensor` in the place of the module's own tensor `name`, for every later call of the module.
  virtual void replace_tensor(const std::string& name, const at::Tensor& tensor) = 0;
  /// Returns the reason why a tensor cannot be replaced, with the remedy; "" if it can. Such tensors stay plain.
  virtual std::string why_fixed(const std::string& /*tensor*/) const { return ""; }

  /// Throws unless the hooks of this module can find the arguments and results that a plan lists. `name`: the module's
  /// name in the model.
  virtual void check_signature(const std::string& name, const SignaturePlan& inputs,
                               const SignaturePlan& outputs) const = 0;
  /// Runs hooks around every later call, outside of forward and of what wrap_forward put there. The first hooks to be
  /// added run first. Returns a function that removes them.
  virtual std::function<void()> add_call_hooks(CallHooks hooks) = 0;
  /// Runs `wrapper` in the place of forward. Returns a function that takes it off again.
  virtual std::function<void()> wrap_forward(ForwardWrapper wrapper) = 0;

  /// Returns the record of parallelize_module's call for this module, or null.
  virtual std::shared_ptr<const Parallelized> parallelized() const = 0;
  /// Records a call of parallelize_module for this module.
  virtual void set_parallelized(std::shared_ptr<const Parallelized> done) = 0;
};

/// A `module` of a model and its name.
struct NamedModule {
  std::string name;  ///< dotted; "" is the root
  ModuleTreePtr module;
};
/// The root and all modules below, each before its children. A module in several places occurs once for each. Not
/// collective.
std::vector<NamedModule> named_modules(const ModuleTreePtr& root);

/// A `tensor` of a model and its name; `is_parameter` is false for a buffer.
struct NamedTensor {
  std::string name;  ///< dotted
  at::Tensor tensor;
  bool is_parameter;
};
/// All parameters, then all buffers, by their first names. A tensor in several places occurs once. Not collective.
std::vector<NamedTensor> named_tensors(const ModuleTreePtr& root);
/// All parameters, each once, with their own shapes and dtypes. Not collective.
std::vector<at::Tensor> parameters_of(const ModuleTreePtr& root);

/// Throws NotImplementedError that begins with `op` if a tensor of these modules cannot be replaced. Not collective.
void check_replaceable(const char* op, const std::vector<NamedModule>& modules);

/// Replaces each tensor of `root` by the result of `place(name, tensor)`, where `name` is dotted. A tensor in several
/// places is placed once and stays shared. `check` is called for all tensors before the first is placed, and throws if
/// one must not be replaced. Throws NotImplementedError that begins with `op`, before anything changes, if a tensor
/// cannot be replaced. Collective if `place` is.
void replace_tensors(const char* op, const ModuleTreePtr& root,
                     const std::function<void(const std::string& name, const ModuleTree::Tensor& tensor)>& check,
                     const std::function<at::Tensor(const std::string& name, const ModuleTree::Tensor& tensor)>& place);

/// Returns for each of `modules` the number of the pattern that means it, or -1. Patterns are those of plans. Throws
/// ValueError that begins with `op` for a pattern that matches nothing (with the nearest name), and for two equally
/// good patterns. Not collective.
std::vector<int64_t> match_modules(const char* op, const std::vector<std::string>& patterns,
                                   const std::vector<std::string>& modules);

}  // namespace moonhalo
