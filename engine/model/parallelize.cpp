// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/parallelize.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"

namespace moonhalo {
namespace {

std::string child_name(const std::string& module, const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

// Moves the tensors that the plan lists; `where` is "'fc1.input'", `what` "arguments". Named arguments may be absent.
void move_listed(CallTensors& values, const SignaturePlan& plan, const MeshPtr& mesh, const std::string& where,
                 const std::string& what) {
  std::vector<at::Tensor*> slots;
  std::vector<ArgumentPlan> plans;
  const auto add = [&](at::Tensor& slot, const ArgumentPlan& argument) {
    if (!slot.defined()) return;
    slots.push_back(&slot);
    plans.push_back(argument);
  };
  for (size_t i = 0; i < plan.by_position.size(); ++i) {
    if (!plan.by_position[i]) continue;
    TORCH_CHECK_VALUE(i < values.by_position.size(), where, " lists ", i + 1, " ", what, ", the call has ",
                      values.by_position.size());
    add(values.by_position[i], *plan.by_position[i]);
  }
  for (const auto& [name, argument] : plan.by_name) {
    const auto found = values.by_name.find(name);
    TORCH_CHECK_VALUE(found != values.by_name.end() || what == "arguments", where, ": no result is named '", name, "'");
    if (found != values.by_name.end()) add(found->second, argument);
  }
  if (slots.empty()) return;
  std::vector<at::Tensor> given;
  for (const at::Tensor* slot : slots) given.push_back(*slot);
  const std::vector<at::Tensor> moved = move_arguments(given, mesh, plans, where);
  for (size_t i = 0; i < slots.size(); ++i) *slots[i] = moved[i];
}

// Replaces the tensors as the plans say, which has none for a tensor that a custom style or the user's function added.
void distribute_tensors(const char* op, const std::vector<NamedModule>& modules, const std::vector<ModulePlan>& plans,
                        const MeshPtr& mesh, std::optional<int64_t> src, bool is_model_sharded) {
  ModulePlan::Tensor whole;
  whole.placements.assign(mesh->ndim(), replicate());
  std::vector<PlannedTensor> planned;
  std::vector<std::pair<ModuleTree*, std::string>> slots;
  for (size_t i = 0; i < modules.size(); ++i) {
    for (ModuleTree::Tensor& tensor : modules[i].module->tensors()) {
      if (!modules[i].module->why_fixed(tensor.name).empty()) {
        materialize_in_place(tensor.value);
        continue;
      }
      const auto plan = plans[i].tensors.find(tensor.name);
      planned.push_back({child_name(modules[i].name, tensor.name), tensor.value,
                         plan == plans[i].tensors.end() ? whole : plan->second});
      slots.emplace_back(modules[i].module.get(), tensor.name);
    }
  }
  const std::vector<at::Tensor> placed = distribute_parameters(planned, mesh, src, is_model_sharded);
  for (size_t s = 0; s < slots.size(); ++s) {
    if (placed[s].defined()) check_no_hooks(op, planned[s].name, planned[s].tensor);
  }
  for (size_t s = 0; s < slots.size(); ++s) {
    if (placed[s].defined()) slots[s].first->replace_tensor(slots[s].second, placed[s]);
  }
}

class Parallelizer {
 public:
  Parallelizer(ModuleTreePtr root, MeshPtr mesh, const ParallelizeOptions& options)
      : root_(std::move(root)), mesh_(std::move(mesh)), options_(options), modules_(named_modules(root_)) {
    for (const NamedModule& one : modules_) {
      ModuleFacts facts{one.name, one.module->kinds(), {}};
      for (const ModuleTree::Tensor& tensor : one.module->tensors()) {
        facts.tensors.push_back({tensor.name, tensor.value.sizes().vec()});
      }
      facts_.push_back(std::move(facts));
    }
  }

  void run(const ParallelPlan& plan) {
    TORCH_CHECK_NOT_IMPLEMENTED(!options_.is_model_sharded || plan.styles.empty(),
                                "parallelize_module: is_model_sharded needs a ",
                                "plan of placements, since styles read the shapes of whole parameters",
                                "\n  fix   give {\"parameter\": {...}, \"forward\": {...}}");
    if (options_.factory) check_factories(*options_.factory, *mesh_);
    plans_ = resolve(plan, facts_, *mesh_, options_.unmatched);
    for (size_t i = 0; i < modules_.size(); ++i) check(i);
    const std::vector<size_t> hooked = modules_with_hooks();
    const auto done = std::make_shared<Parallelized>(Parallelized{mesh_, spelt_out(plans_, facts_)});
    apply_custom_styles(done->custom);
    distribute_tensors("parallelize_module", modules_, plans_, mesh_, options_.src_data_rank,
                       options_.is_model_sharded);
    wrap_factories();
    for (const size_t i : hooked) add_hooks(i);
    root_->set_parallelized(done);
  }

 private:
  void check(size_t i) const {
    const ModuleTree& module = *modules_[i].module;
    module.check_signature(modules_[i].name, plans_[i].inputs, plans_[i].outputs);
    for (const auto& [name, tensor] : plans_[i].tensors) {
      const bool cut = std::any_of(tensor.placements.begin(), tensor.placements.end(),
                                   [](const Placement& placement) { return placement.is_shard(); });
      const std::string reason = cut ? module.why_fixed(name) : "";
      TORCH_CHECK_NOT_IMPLEMENTED(reason.empty(), "parallelize_module: '", child_name(modules_[i].name, name),
                                  "' cannot be cut, ", reason);
    }
    for (const int64_t number : plans_[i].custom) {
      TORCH_CHECK_NOT_IMPLEMENTED(number >= 0 && number < static_cast<int64_t>(options_.custom_styles.size()),
                                  "parallelize_module: '", modules_[i].name, "' has custom style ", number,
                                  ", which the options do not have\n  have  ", options_.custom_styles.size(),
                                  " custom_styles\n  fix   give its function in custom_styles");
    }
  }

  // One place of each module whose arguments or results move.
  std::vector<size_t> modules_with_hooks() const {
    std::map<const void*, size_t> first;
    std::vector<size_t> hooked;
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (plans_[i].inputs.empty() && plans_[i].outputs.empty()) continue;
      const auto [found, is_new] = first.emplace(modules_[i].module->identity(), i);
      const size_t other = found->second;
      TORCH_CHECK_VALUE(plans_[other].inputs == plans_[i].inputs && plans_[other].outputs == plans_[i].outputs,
                        "parallelize_module: '", modules_[other].name, "' and '", modules_[i].name,
                        "' are one module, and the plan moves their arguments differently\n  fix   list one of them");
      if (is_new) hooked.push_back(i);
    }
    return hooked;
  }

  void apply_custom_styles(std::vector<std::string>& names) const {
    std::set<std::pair<const void*, int64_t>> applied;
    for (size_t i = 0; i < modules_.size(); ++i) {
      for (const int64_t number : plans_[i].custom) {
        names.push_back(modules_[i].name);
        if (!applied.emplace(modules_[i].module->identity(), number).second) continue;
        options_.custom_styles[number](modules_[i].module, mesh_);
      }
    }
  }

  void wrap_factories() const {
    if (!options_.factory) return;
    root_->wrap_forward([mesh = mesh_, plan = *options_.factory](const Forward& forward, const CallTensors& arguments) {
      const CaptureFactories captured(mesh, plan);
      return forward(arguments);
    });
  }

  void add_hooks(size_t i) const {
    const auto hook = [&](const SignaturePlan& plan, const char* side,
                          const char* what) -> std::function<void(CallTensors&)> {
      if (plan.empty()) return nullptr;
      const std::string where = "'" + child_name(modules_[i].name, side) + "'";
      return [plan, where, what, mesh = mesh_](CallTensors& values) { move_listed(values, plan, mesh, where, what); };
    };
    modules_[i].module->add_call_hooks(
        {hook(plans_[i].inputs, "input", "arguments"), hook(plans_[i].outputs, "output", "results")});
  }

  ModuleTreePtr root_;
  MeshPtr mesh_;
  const ParallelizeOptions& options_;
  std::vector<NamedModule> modules_;
  std::vector<ModuleFacts> facts_;
  std::vector<ModulePlan> plans_;
};

void check_given(const char* op, bool module, const MeshPtr& mesh) {
  TORCH_CHECK_VALUE(module && mesh != nullptr, op, ": no ", module ? "mesh" : "module", " given");
}

}  // namespace

void parallelize_module(const ModuleTreePtr& module, const MeshPtr& mesh, const ParallelPlan& plan,
                        const ParallelizeOptions& options) {
  check_given("parallelize_module", module != nullptr, mesh);
  if (module->parallelized()) {
    if (mesh->rank() == 0) {
      TORCH_WARN("parallelize_module: this ", module->kinds()[0], " was parallelized before, nothing is changed");
    }
    return;
  }
  Parallelizer(module, mesh, options).run(plan);
}

std::shared_ptr<torch::nn::Module> parallelize_module(const std::shared_ptr<torch::nn::Module>& module,
                                                      const MeshPtr& mesh, const ParallelPlan& plan,
                                                      const ParallelizeOptions& options) {
  check_given("parallelize_module", module != nullptr, mesh);
  parallelize_module(module_tree(*module), mesh, plan, options);
  return module;
}

void distribute_module(const ModuleTreePtr& module, const MeshPtr& mesh, const DistributeFunctions& functions) {
  check_given("distribute_module", module != nullptr, mesh);
  const std::vector<NamedModule> modules = named_modules(module);
  check_replaceable("distribute_module", modules);
  std::set<const void*> seen;
  for (const NamedModule& one : modules) {
    if (functions.partition && seen.insert(one.module->identity()).second) {
      functions.partition(one.name, one.module, mesh);
    }
  }
  distribute_tensors("distribute_module", modules, std::vector<ModulePlan>(modules.size()), mesh, /*src=*/0,
                     /*is_model_sharded=*/false);
  CallHooks hooks;
  if (functions.input) hooks.before = [mesh, run = functions.input](CallTensors& values) { run(values, mesh); };
  if (functions.output) hooks.after = [mesh, run = functions.output](CallTensors& values) { run(values, mesh); };
  if (hooks.before || hooks.after) module->add_call_hooks(std::move(hooks));
}

std::shared_ptr<torch::nn::Module> distribute_module(const std::shared_ptr<torch::nn::Module>& module,
                                                     const MeshPtr& mesh, const DistributeFunctions& functions) {
  check_given("distribute_module", module != nullptr, mesh);
  distribute_module(module_tree(*module), mesh, functions);
  return module;
}

}  // namespace moonhalo
