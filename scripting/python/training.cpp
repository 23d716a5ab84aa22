// SPDX-License-Identifier: Apache-2.0
// Plans, placed parameters and units of parameters, for the walks over torch.nn modules in Python.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/engine/sharding/whole_mesh.h"
#include "moonhalo/engine/training/local_loss_mesh.h"
#include "moonhalo/engine/training/sample_arguments.h"
#include "moonhalo/engine/training/unit_reducer.h"
#include "moonhalo/scripting/python/module.h"

namespace moonhalo::python {

namespace {

using at::Tensor;
using TensorFactsTuple = std::pair<std::string, std::vector<int64_t>>;
using ModuleFactsTuple = std::tuple<std::string, std::vector<std::string>, std::vector<TensorFactsTuple>>;

/// (positions, names) of a module's arguments or results, None where nothing is moved.
py::object shown(const SignaturePlan& plan) {
  if (plan.empty()) return py::none();
  py::dict positions, names;
  for (size_t i = 0; i < plan.by_position.size(); ++i) {
    if (plan.by_position[i]) positions[py::int_(i)] = py::cast(*plan.by_position[i]);
  }
  for (const auto& [name, argument] : plan.by_name) names[py::str(name)] = py::cast(argument);
  return py::make_tuple(positions, names);
}

/// Per module a dict: tensors {name: (placements, listed, placements of the gradient)}, inputs, outputs, custom.
py::list resolve_plan(const std::string& json, const std::vector<ModuleFactsTuple>& modules, const MeshPtr& mesh,
                      bool warns) {
  std::vector<ModuleFacts> facts;
  for (const auto& [name, kinds, tensors] : modules) {
    facts.push_back({name, kinds, {}});
    for (const auto& [tensor, shape] : tensors) facts.back().tensors.push_back({tensor, shape});
  }
  py::list found;
  for (const ModulePlan& module :
       resolve(parse_plan(json), facts, *mesh, warns ? Unmatched::kWarn : Unmatched::kError)) {
    py::dict tensors;
    for (const auto& [name, tensor] : module.tensors)
      tensors[py::str(name)] = py::make_tuple(tensor.placements, tensor.listed, tensor.gradient);
    found.append(py::dict(py::arg("tensors") = tensors, py::arg("inputs") = shown(module.inputs),
                          py::arg("outputs") = shown(module.outputs), py::arg("custom") = module.custom));
  }
  return found;
}

using PlannedTuple = std::tuple<std::string, Tensor, Placements, bool, std::optional<Placements>>;

/// The tensors that replace those of a model; None where one stays.
std::vector<std::optional<Tensor>> distribute_all(const std::vector<PlannedTuple>& given, const MeshPtr& mesh,
                                                  std::optional<int64_t> src, bool is_model_sharded) {
  std::vector<PlannedTensor> tensors;
  for (const auto& [name, tensor, placements, listed, gradient] : given)
    tensors.push_back({name, tensor, {.placements = placements, .gradient = gradient, .listed = listed}});
  std::vector<std::optional<Tensor>> placed;
  for (const Tensor& tensor : distribute_parameters(tensors, mesh, src, is_model_sharded))
    placed.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
  return placed;
}

std::vector<Tensor> move_all(const std::vector<ArgumentPlan>& plans, const std::vector<Tensor>& tensors,
                             const MeshPtr& mesh, const std::string& where) {
  return move_arguments(tensors, mesh, plans, where);
}

/// True if the tensor's mesh is a slice of the whole one, so that samples may be joined.
bool is_on_slice(const Tensor& tensor, const MeshPtr& data) {
  const MeshPtr mesh = whole_mesh(data);
  return is_shard_tensor(tensor) && spec(tensor)->mesh() != mesh &&
         !dims_of_slice(*mesh, *spec(tensor)->mesh()).empty();
}

bool check_samples(const std::vector<std::pair<std::string, Tensor>>& given, const MeshPtr& data,
                   const std::string& who) {
  std::vector<SampleArgument> arguments;
  for (const auto& [name, tensor] : given) arguments.push_back({.tensor = tensor, .name = name});
  return check_sample_arguments(arguments, data, who);
}

Tensor mark(const Tensor& tensor, Said said) {
  meaning_to_change(tensor).said = said;
  return tensor;
}

std::shared_ptr<ParameterUnit> make_unit(const std::vector<Tensor>& parameters, bool reshard_after_forward,
                                         bool reshard_after_backward, int64_t prefetch, int64_t bucket_bytes,
                                         std::optional<at::ScalarType> param_dtype,
                                         std::optional<at::ScalarType> reduce_dtype) {
  FullyShardOptions options;
  options.reshard_after_forward = reshard_after_forward;
  options.reshard_after_backward = reshard_after_backward;
  options.prefetch = prefetch;
  options.param_dtype = param_dtype;
  options.gradients.bucket_bytes = bucket_bytes;
  options.gradients.reduce_dtype = reduce_dtype;
  return std::make_shared<ParameterUnit>(parameters, options);
}

void define_units(py::module_& m) {
  py::class_<ParameterUnit, std::shared_ptr<ParameterUnit>>(m, "_ParameterUnit")
      .def("before_forward", &ParameterUnit::before_forward, Released())
      .def(
          "after_forward", [](ParameterUnit& unit, const std::vector<Tensor>& results) { unit.after_forward(results); },
          Released())
      .def("forward_failed", &ParameterUnit::forward_failed, Released())
      .def("cast_of", &ParameterUnit::cast_of)
      .def("reshard", &ParameterUnit::reshard);
  m.def("_make_unit", &make_unit, Released());
  m.def(
      "_store_parameter",
      [](const Tensor& tensor, const MeshPtr& data, int64_t min_numel, int64_t unit_rows, const std::string& name) {
        return store_parameter(tensor, data, {.min_numel = min_numel, .unit_rows = unit_rows}, name);
      },
      Released());
  m.def("_copy_tensor", &copy_tensor, Released());
  m.def("_is_stored_already", &is_stored_already);
  m.def("_register_local_loss_mesh", &register_local_loss_mesh, Released());
}

void define_samples(py::module_& m) {
  m.def(
      "local_batch",
      [](const Tensor& tensor, const MeshPtr& mesh) {
        if (mesh == nullptr) return mark(tensor, Said::kOwn);
        note_weights_behind(tensor);
        const ScopedRelease released;
        return local_batch(tensor, mesh);
      },
      py::arg("tensor"), py::arg("mesh") = py::none(),
      "One tensor of each rank's own samples, cut along dim 0; ranks may have different numbers of rows. Collective "
      "over "
      "the whole mesh. Without a mesh it returns the tensor, marked as this rank's own samples; then it is not "
      "collective.");
  m.def(
      "constant", [](const Tensor& tensor) { return mark(tensor, Said::kConstant); }, py::arg("tensor"),
      "Marks a tensor that is the same for all samples, for modules of fully_shard and replicate, and returns it. Not "
      "collective.");
  m.def("_is_constant", [](const Tensor& tensor) { return meaning_of(tensor).said == Said::kConstant; });
  m.def("_constant_of_samples", &constant_of_samples, Released());
  m.def("_is_on_slice", &is_on_slice);
  m.def("_check_samples", &check_samples, Released());
}

}  // namespace

void define_training(py::module_& m) {
  py::class_<ArgumentPlan>(m, "_ArgumentPlan");
  m.def("_resolve_plan", &resolve_plan);
  m.def("_distribute_parameters", &distribute_all, Released());
  m.def("_move_arguments", &move_all, Released());
  m.def(
      "_clip_grad_norm",
      [](const std::vector<Tensor>& parameters, double max_norm, double norm_type, bool error_if_nonfinite) {
        return clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite);
      },
      Released());
  m.def(
      "_finish_grad_sync",
      [](const std::vector<Tensor>& parameters) {
        finish_grad_sync(parameters, {.bucket_bytes = bucket_bytes_of(parameters)});
      },
      Released());
  m.def("_set_requires_gradient_sync", &set_requires_gradient_sync);
  define_samples(m);
  define_units(m);
}

}  // namespace moonhalo::python
