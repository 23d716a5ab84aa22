// SPDX-License-Identifier: Apache-2.0
// The Python module moonhalo._moonhalo: meshes, ranks as threads, and the ways into a ShardTensor and out of it. All
// else is PyTorch's: a ShardTensor arrives as a torch.Tensor.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/utils/pybind.h>

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/comm/interpreter_lock.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/engine/tensor/front_parameters.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/version.h"

namespace py = pybind11;
using moonhalo::CommError;
using moonhalo::Communicator;
using moonhalo::CommunicatorPtr;
using moonhalo::DeviceMesh;
using moonhalo::MeshPtr;
using moonhalo::Placement;

namespace {

using Placements = std::vector<Placement>;

bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// Runs what may wait for the interpreter. Where that ends meanwhile, Python ends this thread by unwinding its stack,
/// through functions that cannot be unwound: the program would end by std::terminate. The thread sleeps instead, until
/// the process has ended.
template <typename Work>
void until_the_interpreter_ends(const Work& work) {
  try {
    work();
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

void take_interpreter(PyThreadState* state) {
  until_the_interpreter_ends([state] {
    while (interpreter_ends()) ::pause();
    PyEval_RestoreThread(state);
  });
}

/// Others may need Python before they join a collective, so whoever waits in one must not hold the interpreter. The
/// wait gives it up by itself (use_interpreter_lock), as it must in PyTorch's own functions; here others run meanwhile,
/// too.
class GivenUp {
 public:
  GivenUp() : state_(PyEval_SaveThread()) {}
  ~GivenUp() { take_interpreter(state_); }
  GivenUp(const GivenUp&) = delete;

 private:
  PyThreadState* state_;
};
using Released = py::call_guard<GivenUp>;

void use_interpreter_lock() {
  static const moonhalo::InterpreterLock lock{
      .give_up = []() -> void* {
        // After the interpreter's end PyGILState_Check is always true. While it ends, the thread that ends it has it.
        const bool runs = Py_IsInitialized() != 0 && !interpreter_ends();
        return runs && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
      },
      .take = [](void* given_up) { take_interpreter(static_cast<PyThreadState*>(given_up)); },
  };
  moonhalo::set_interpreter_lock(lock);
}

/// LibTorch's errors as PyTorch raises them.
void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(error);
  }
}

/// An error of Python, held so that no thread needs the interpreter to copy or to destroy it.
struct PythonError {
  py::object type, value, trace;
};

/// Ends a rank whose error of Python is kept elsewhere.
class RankFailed : public std::exception {
 public:
  RankFailed(int rank, std::string text) : rank_(rank), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  int rank() const { return rank_; }

 private:
  int rank_;
  std::string text_;
};

/// Calls `fn(world, *arguments)` on ranks that are threads of this process. An error of one rank ends the others, and
/// is raised in its own type.
void run_ranks(int ranks, const py::function& fn, const py::args& arguments, int threads_per_rank) {
  std::vector<PythonError> errors(std::max(ranks, 0));
  const auto run = [&](Communicator& world) {
    std::optional<py::gil_scoped_acquire> held;
    until_the_interpreter_ends([&] { held.emplace(); });
    try {
      py::tuple all(1 + arguments.size());
      all[0] = py::cast(world.shared_from_this());
      for (size_t i = 0; i < arguments.size(); ++i) all[i + 1] = arguments[i];
      PyObject* result = nullptr;  // nothing to destroy where the thread sleeps
      until_the_interpreter_ends([&] { result = PyObject_Call(fn.ptr(), all.ptr(), nullptr); });
      if (result == nullptr) throw py::error_already_set();
      Py_DECREF(result);
    } catch (py::error_already_set& error) {
      errors[world.rank()] = {error.type(), error.value(), error.trace()};
      throw RankFailed(world.rank(), std::string(py::str(error.value())));
    }
  };
  try {
    const GivenUp released;
    moonhalo::run_ranks(ranks, run, threads_per_rank);
  } catch (const RankFailed& first) {
    PythonError& error = errors[first.rank()];
    PyErr_Restore(error.type.release().ptr(), error.value.release().ptr(), error.trace.release().ptr());
    throw py::error_already_set();
  }
}

void define_communicator(py::module_& m) {
  py::class_<Communicator, CommunicatorPtr>(m, "Communicator", "A group of ranks.")
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("size", &Communicator::size)
      .def_property_readonly("backend", &Communicator::backend)
      .def("barrier", &Communicator::barrier, Released())
      .def("split", &Communicator::split, py::arg("color"), py::arg("key") = 0, Released())
      .def("bytes_sent", [](const Communicator& world) { return world.stats().total().bytes; });
  m.def("run_ranks", &run_ranks, py::arg("ranks"), py::arg("fn"), py::arg("threads_per_rank") = 0);
  m.def(
      "world", [](const std::string& backend) { return moonhalo::make_world(backend, moonhalo::detect_launch()); },
      py::arg("backend") = "", Released());
  m.def(
      "mpi_world", [] { return moonhalo::make_world("mpi", moonhalo::detect_launch()); }, Released());
  m.def("self_world", &moonhalo::make_self_communicator);
}

void define_mesh(py::module_& m) {
  py::class_<Placement>(m, "Placement")
      .def("__repr__", &Placement::to_string)
      .def("__eq__", [](const Placement& a, const Placement& b) { return a == b; })
      .def("is_shard", [](const Placement& p) { return p.is_shard(); })
      .def("is_replicate", [](const Placement& p) { return p.is_replicate(); })
      .def("is_partial", [](const Placement& p) { return p.is_partial(); })
      .def_readonly("dim", &Placement::dim)
      .def_readonly("sizes", &Placement::sizes);
  m.def("Shard", &moonhalo::shard, py::arg("dim"), py::arg("sizes") = std::vector<int64_t>{});
  m.def("Replicate", [] { return moonhalo::replicate(); });
  m.def(
      "Partial", [](const std::string& op) { return moonhalo::partial(moonhalo::parse_reduce_op(op)); },
      py::arg("op") = "sum");
  py::class_<DeviceMesh, MeshPtr>(m, "DeviceMesh", "A grid of ranks with named dims.")
      .def_property_readonly("shape", &DeviceMesh::shape)
      .def_property_readonly("names", &DeviceMesh::names)
      .def_property_readonly("rank", &DeviceMesh::rank)
      .def("size", py::overload_cast<>(&DeviceMesh::size, py::const_))
      .def("coordinate", py::overload_cast<const std::string&>(&DeviceMesh::coordinate, py::const_), py::arg("name"))
      .def(
          "__getitem__", [](DeviceMesh& mesh, const std::string& name) { return mesh[name]; }, Released())
      .def("__repr__", &DeviceMesh::to_string);
  m.def("init_device_mesh", &moonhalo::init_device_mesh, py::arg("world"), py::arg("device_type"), py::arg("shape"),
        py::arg("names") = std::vector<std::string>{}, Released());
}

/// Tells the engine which tensors `block` was computed from are weights of a torch.nn.Module.
void note_weights_behind(const at::Tensor& block) {
  if (!c10::GradMode::is_enabled() || !block.requires_grad()) return;
  const py::object parameter = py::module_::import("torch.nn").attr("Parameter");
  const std::vector<at::Tensor> leaves = moonhalo::plain_leaves_behind(block);
  for (const at::Tensor& leaf : leaves) {
    if (!moonhalo::meaning_of(leaf).is_parameter && py::isinstance(py::cast(leaf), parameter))
      moonhalo::note_parameters({leaf});
  }
  // A reentrant checkpoint computes in backward from leaves of its own, whose gradients it hands to what is not seen
  // here.
  const bool cut_off = leaves.empty() || std::any_of(leaves.begin(), leaves.end(), [](const at::Tensor& leaf) {
                         return !moonhalo::meaning_of(leaf).is_parameter;
                       });
  TORCH_CHECK_NOT_IMPLEMENTED(
      !cut_off || torch::autograd::get_current_graph_task_id() < 0,
      "from_local: in the backward pass the weights cannot be seen that this block was computed from, so the ranks' "
      "addends of their gradients would not be summed\n  have  a block of shape ",
      block.sizes(), "\n  fix   torch.utils.checkpoint.checkpoint(..., use_reentrant=False)");
}

void define_tensors(py::module_& m) {
  using at::Tensor;
  m.def("is_shard_tensor", &moonhalo::is_shard_tensor, py::arg("tensor"));
  m.def(
      "from_local",
      [](const Tensor& local, const MeshPtr& mesh, const Placements& placements) {
        note_weights_behind(local);
        const GivenUp released;
        return moonhalo::from_local(local, mesh, placements);
      },
      py::arg("local"), py::arg("mesh"), py::arg("placements"));
  for (const bool scatter : {true, false}) {
    m.def(
        scatter ? "scatter_tensor" : "distribute_tensor",
        [scatter](const std::optional<Tensor>& full, const MeshPtr& mesh, const Placements& placements, int64_t src) {
          const Tensor given = full.value_or(Tensor());
          if (given.defined()) note_weights_behind(given);
          const GivenUp released;
          return scatter ? moonhalo::scatter_tensor(given, mesh, placements, src)
                         : moonhalo::distribute_tensor(given, mesh, placements, src);
        },
        py::arg("full"), py::arg("mesh"), py::arg("placements"), py::arg("src") = 0);
  }
  m.def(
      "redistribute",
      [](const Tensor& tensor, const Placements& placements) { return moonhalo::redistribute(tensor, placements); },
      py::arg("tensor"), py::arg("placements"), Released());
  m.def("full_tensor", &moonhalo::full_tensor, py::arg("tensor"), Released());
  m.def(
      "to_local", [](const Tensor& tensor) { return moonhalo::to_local(tensor); }, py::arg("tensor"), Released());
  m.def(
      "placements", [](const Tensor& tensor) { return moonhalo::spec(tensor)->placements(); }, py::arg("tensor"));
  m.def(
      "mesh_of", [](const Tensor& tensor) { return moonhalo::spec(tensor)->mesh(); }, py::arg("tensor"));
  m.def("_replace_hooks",
        [](const Tensor& tensor, const py::function& replace) { moonhalo::replace_hooks(tensor, [&] { replace(); }); });
  m.def("_check_trained", &moonhalo::check_no_own_data);
  m.def("manual_seed", &moonhalo::manual_seed, py::arg("seed"));
}

}  // namespace

PYBIND11_MODULE(_moonhalo, m) {
  m.attr("__version__") = moonhalo::kVersion;
  use_interpreter_lock();
  moonhalo::speak_python();
  py::register_local_exception_translator(&translate);
  py::register_exception<CommError>(m, "CommError", PyExc_RuntimeError).attr("__module__") = "moonhalo";
  define_communicator(m);
  define_mesh(m);
  define_tensors(m);
}
