// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Shared by the files of the Python module moonhalo._moonhalo. module.cpp has the entry point.

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::python {

namespace py = pybind11;

using Placements = std::vector<Placement>;
using OptionalPlacements = std::vector<std::optional<Placements>>;

/// Takes the interpreter back. A thread that asks for it while the interpreter ends sleeps instead.
void take_interpreter(PyThreadState* state);

/// Others may need Python before they join a collective, so whoever waits in one must not hold the interpreter. The
/// wait gives it up by itself (use_interpreter_lock), as it must in PyTorch's own functions; here others run meanwhile,
/// too.
class ScopedRelease {
 public:
  ScopedRelease() : state_(PyEval_SaveThread()) {}
  ~ScopedRelease() { take_interpreter(state_); }
  ScopedRelease(const ScopedRelease&) = delete;

 private:
  PyThreadState* state_;
};
using Released = py::call_guard<ScopedRelease>;

/// Declares the parameters of torch.nn modules that `block` was computed from to the engine.
void note_weights_behind(const at::Tensor& block);

void define_mesh(py::module_& m);
void define_tensors(py::module_& m);
void define_settings(py::module_& m);
void define_training(py::module_& m);
void define_files(py::module_& m);
void define_rules(py::module_& m);
void define_lua_objects(py::module_& m);

}  // namespace moonhalo::python
