// SPDX-License-Identifier: Apache-2.0
// Rules of operators that Python registers: a list of acceptable shardings for each call, which become axes for the
// engine's `solve`.
#include <torch/csrc/jit/python/pybind_utils.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/dispatch/add_rule.h"
#include "moonhalo/engine/dispatch/axes.h"
#include "moonhalo/scripting/python/module.h"

namespace moonhalo::python {

namespace {

using Given = std::vector<std::optional<Placement>>;
using Acceptable = std::pair<Given, Given>;  // of the results, of the arguments

/// A function of Python, and the class of what it gets for a tensor. Rules live until the program ends, and so do
/// these.
struct Function {
  py::object call, make_spec;
};

py::object spec_of(const TensorArgument& slot, const Function& fn) {
  if (!slot.spec) return py::none();
  return fn.make_spec(slot.spec->global_shape(), py::cast(slot.dtype), slot.spec->placements(), slot.spec->mesh());
}

std::vector<Acceptable> ask(const OpCall& call, const Function& fn) {
  const py::gil_scoped_acquire held;
  py::list positions;
  py::dict names;
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    py::list items;
    py::object value;
    for (const TensorArgument& slot : call.slots()) {
      if (slot.arg.index != static_cast<int>(i)) continue;
      items.append(spec_of(slot, fn));
      if (slot.item < 0) value = items[0];
    }
    if (!value) value = items.empty() ? torch::jit::toPyObject(call.value(Arg{static_cast<int>(i)})) : items;
    if (arguments[i].kwarg_only()) {
      names[py::str(arguments[i].name())] = value;
    } else {
      positions.append(value);
    }
  }
  std::string problem;
  try {
    return fn.call(*positions, **names).cast<std::vector<Acceptable>>();
  } catch (const py::error_already_set& error) {
    problem = error.what();
  } catch (const py::cast_error&) {
    problem = "it does not return a list of ([placements of results], [placements of arguments])";
  }
  TORCH_CHECK_VALUE(false, call.name(), ": its registered sharding failed\n  have  ", problem);
}

/// The axes of one call: each acceptable sharding that cuts is an axis.
class CallAxes {
 public:
  explicit CallAxes(const OpCall& call) : call_(call) {
    for (const TensorArgument& slot : call.slots())
      axes_.inputs.emplace_back(slot.spec ? slot.spec->global_shape().size() : 0, -1);
    for (const auto& shape : call.output_shapes()) {
      check(shape.has_value(), "has a result that is None");
      axes_.outputs.emplace_back(shape->size(), -1);
      axes_.output_shapes.push_back(*shape);
    }
    axes_.linear.assign(call.slots().size(), PartialUse::kResolve);
  }

  void add(const Acceptable& given) {
    ++number_;
    const auto& [results, arguments] = given;
    check(arguments.size() == call_.op.schema().arguments().size(),
          "has another number of arguments than the operator, " + std::to_string(call_.op.schema().arguments().size()));
    check(results.size() == axes_.outputs.size(),
          "has another number of results than the operator, " + std::to_string(axes_.outputs.size()));
    const int axis = static_cast<int>(axes_.kinds.size());
    int64_t extent = -1;
    size_t shards = 0, partials = 0, tensors = 0, partial_slot = 0;
    for (size_t s = 0; s < call_.slots().size(); ++s) {
      const TensorArgument& slot = call_.slots()[s];
      if (!slot.spec) continue;
      ++tensors;
      const auto& placement = arguments[slot.arg.index];
      check(placement.has_value(), "has no placement for a tensor");
      if (placement->is_shard()) {
        enter(axes_.inputs[s], slot.spec->global_shape(), *placement, axis, extent);
        ++shards;
      } else if (placement->is_partial()) {
        partial_slot = s;
        ++partials;
      }
    }
    check(shards == 0 || partials == 0, "has arguments that are Shard and Partial");
    if (shards > 0) return add_axis(results, axis, extent);
    const bool linear = partials > 0;
    for (const auto& placement : results) {
      check(placement &&
                (linear ? placement->is_partial() && placement->op == ReduceOp::kSum : placement->is_replicate()),
            linear ? "has Partial arguments, and a result that is not Partial()"
                   : "has no cut argument, and a result that is not Replicate()");
    }
    if (!linear) return;  // always acceptable
    check(partials == 1 || partials == tensors, "has some arguments that are Partial");
    if (partials == 1) axes_.linear[partial_slot] = PartialUse::kOneFactor;
    if (partials > 1) axes_.linear.assign(axes_.linear.size(), PartialUse::kAllTerms);
  }

  const Axes& get() const { return axes_; }

 private:
  void check(bool good, const std::string& problem) const {
    TORCH_CHECK_VALUE(good, call_.name(), ": acceptable sharding ", number_, " of its registered sharding ", problem,
                      "\n  have  ", call_.describe(),
                      "\n  fix   return ([placement of each result], [placement of each argument, None for what is no "
                      "tensor])");
  }

  void enter(std::vector<int>& dims, at::IntArrayRef shape, const Placement& placement, int axis,
             int64_t& extent) const {
    const auto ndim = static_cast<int64_t>(shape.size());
    const int64_t dim = placement.dim < 0 ? placement.dim + ndim : placement.dim;
    check(dim >= 0 && dim < ndim,
          "cuts dim " + std::to_string(placement.dim) + " of a tensor of " + std::to_string(ndim) + " dims");
    check(placement.sizes.empty(), "gives sizes of blocks, which are those of the arguments");
    check(dims[dim] < 0, "cuts dim " + std::to_string(dim) + ", which another acceptable sharding cuts");
    check(extent < 0 || shape[dim] == extent,
          "cuts dims of " + std::to_string(extent) + " and of " + std::to_string(shape[dim]) + " rows together");
    extent = shape[dim];
    dims[dim] = axis;
  }

  void add_axis(const Given& results, int axis, int64_t extent) {
    check(!results.empty() && results[0], "has no placement for a result");
    const bool keeps = results[0]->is_shard();
    for (size_t r = 0; r < results.size(); ++r) {
      check(results[r] && results[r]->is_shard() == keeps && results[r]->is_partial() == !keeps,
            "has cut arguments, and results that are not all Shard or all Partial");
      if (keeps) {
        enter(axes_.outputs[r], axes_.output_shapes[r], *results[r], axis, extent);
      } else {
        check(!reduces_ || results[r]->op == axes_.reduce, "has a Partial of another kind than those before");
        axes_.reduce = results[r]->op;
        reduces_ = true;
      }
    }
    axes_.kinds.push_back(keeps ? AxisKind::kKeep : AxisKind::kReduce);
  }

  const OpCall& call_;
  Axes axes_;
  int number_ = 0;
  bool reduces_ = false;
};

void register_sharding(const std::string& op, const std::string& overload, py::object fn, py::object make_spec) {
  const c10::OperatorName name(op, overload);
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  TORCH_CHECK_VALUE(handle, "register_sharding: there is no operator ", name);
  for (const auto& argument : handle->schema().arguments()) {
    TORCH_CHECK_VALUE(argument.alias_info() == nullptr, "register_sharding: ", name, " writes to '", argument.name(),
                      "', or returns a view of it\n  fix   register the sharding of the operator that returns a new "
                      "tensor");
  }
  const auto* kept = new Function{std::move(fn), std::move(make_spec)};
  add_rule(
      name,
      [kept](const OpCall& call) {
        const std::vector<Acceptable> acceptable = ask(call, *kept);
        CallAxes axes(call);
        for (const Acceptable& one : acceptable) axes.add(one);
        return std::optional(solve(call, axes.get()));
      },
      "what register_sharding accepts");
}

}  // namespace

void define_rules(py::module_& m) { m.def("_register_sharding", &register_sharding); }

}  // namespace moonhalo::python
