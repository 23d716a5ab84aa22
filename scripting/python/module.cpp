// SPDX-License-Identifier: Apache-2.0
// The Python module moonhalo._moonhalo: meshes, ranks as threads, and the ways into a ShardTensor and out of it. All
// else is PyTorch's: a ShardTensor arrives as a torch.Tensor.
#include <torch/csrc/Exceptions.h>

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
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/scripting/python/module.h"
#include "moonhalo/version.h"

namespace moonhalo::python {

namespace {

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

}  // namespace

void take_interpreter(PyThreadState* state) {
  until_the_interpreter_ends([state] {
    while (interpreter_ends()) ::pause();
    PyEval_RestoreThread(state);
  });
}

namespace {

void use_interpreter_lock() {
  static const InterpreterLock lock{
      .release = []() -> void* {
        // After the interpreter's end PyGILState_Check is always true. While it ends, the thread that ends it has it.
        const bool runs = Py_IsInitialized() != 0 && !interpreter_ends();
        return runs && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
      },
      .acquire = [](void* state) { take_interpreter(static_cast<PyThreadState*>(state)); },
  };
  set_interpreter_lock(lock);
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
    const ScopedRelease released;
    moonhalo::run_ranks(ranks, run, threads_per_rank);
  } catch (const RankFailed& first) {
    PythonError& error = errors[first.rank()];
    PyErr_Restore(error.type.release().ptr(), error.value.release().ptr(), error.trace.release().ptr());
    throw py::error_already_set();
  }
}

py::dict counts_of(const CommStats::Count& count) {
  return py::dict(py::arg("calls") = count.calls, py::arg("messages") = count.messages, py::arg("bytes") = count.bytes);
}

/// Returns the counts of this rank over `world` and the groups split from it, and its operators on ShardTensors.
py::dict comm_stats(Communicator& world, bool reset) {
  py::dict found = counts_of(world.stats().total()), kinds, operators;
  for (int kind = 0; kind < CommStats::kKinds; ++kind)
    kinds[CommStats::name(static_cast<CommStats::Kind>(kind))] = counts_of(world.stats().by_kind[kind]);
  for (const auto& [name, counts] : Dispatch::of_this_thread().operator_counts()) {
    operators[name.c_str()] = py::dict(py::arg("calls") = counts.calls, py::arg("bytes") = counts.bytes,
                                       py::arg("gathered") = counts.gathered);
  }
  const HaloTimes& times = halo_times();
  found["by_kind"] = kinds;
  found["by_operator"] = operators;
  found["halo"] = py::dict(py::arg("exchanges") = times.exchanges, py::arg("seconds") = times.under_way,
                           py::arg("waited") = times.waited, py::arg("hidden") = times.hidden());
  found["waited"] = world.stats().waited;
  if (reset) {
    world.reset_stats();
    Dispatch::of_this_thread().reset_operator_counts();
    halo_times() = {};
  }
  return found;
}

void define_communicator(py::module_& m) {
  py::class_<Communicator, CommunicatorPtr>(m, "Communicator", "A group of ranks.")
      .def_property_readonly("rank", &Communicator::rank, "The number of this rank in the group, from 0.")
      .def_property_readonly("size", &Communicator::size, "The number of ranks.")
      .def_property_readonly("backend", &Communicator::backend,
                             "The carrier of messages: \"threads\", \"mpi\", \"tcp\", \"nccl\" and so on.")
      .def("barrier", &Communicator::barrier, Released(), "Returns when all ranks have called it. Collective.")
      .def("split", &Communicator::split, py::arg("color"), py::arg("key") = 0, Released(),
           "The group of the ranks that pass the same color, ordered by key, then by rank. Collective.")
      .def(
          "bytes_sent", [](const Communicator& world) { return world.stats().total().bytes; },
          "The bytes that this rank has sent so far. Not collective.")
      .def("comm_stats", &comm_stats, py::arg("reset") = false,
           "Calls, messages and bytes of this rank so far, by kind and by operator, and the seconds it waited in "
           "collectives and exchanges. Not collective.")
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return self; });
  m.def("run_ranks", &run_ranks, py::arg("ranks"), py::arg("fn"), py::arg("threads_per_rank") = 0);
  m.def(
      "world", [](const std::string& backend) { return make_world(backend, detect_launch()); }, py::arg("backend") = "",
      Released(),
      "The processes that a launcher started: over MPI under mpirun and srun with PMI, over TCP under torchrun and "
      "others. "
      "`backend`: \"mpi\" or \"tcp\". Collective over these processes. ValueError if the launcher started more of "
      "them.");
  m.def(
      "mpi_world", [] { return make_world("mpi", detect_launch()); }, Released(),
      "The processes of MPI, MPI_COMM_WORLD. Collective. ValueError if the launcher started more processes than MPI "
      "finds.");
  m.def("self_world", &make_self_communicator, "A world of this process alone. Not collective.");
}

}  // namespace

}  // namespace moonhalo::python

PYBIND11_MODULE(_moonhalo, m) {
  using namespace moonhalo::python;
  m.attr("__version__") = moonhalo::kVersion;
  use_interpreter_lock();
  moonhalo::speak_python();
  pybind11::register_local_exception_translator(&translate);
  pybind11::register_exception<moonhalo::CommError>(m, "CommError", PyExc_RuntimeError).attr("__module__") = "moonhalo";
  m.attr("CommError").attr("__doc__") = "A rank was lost, did not answer in time or ended the others.";
  define_communicator(m);
  define_mesh(m);
  define_tensors(m);
  define_settings(m);
  define_training(m);
  define_files(m);
  define_rules(m);
  define_lua_objects(m);
}
