// SPDX-License-Identifier: Apache-2.0
// Files with named datasets, and checkpoints.
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/scripting/python/module.h"

namespace moonhalo::python {

namespace {

using at::Tensor;
using io::Dataset;
using io::File;
using io::ReadOptions;
using io::Selection;
using Dtype = std::optional<at::ScalarType>;

/// Modules without a forward, whose parameters have the names of a state_dict.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
/// (JSON, tensors), as io::PackedOptimizer has them.
using Optimizer = std::pair<std::string, NamedTensors>;
using Value = std::variant<bool, int64_t, double, std::string, Tensor, NamedTensors, Optimizer>;

std::shared_ptr<torch::nn::Module> module_of(const NamedTensors& tensors) {
  auto root = std::make_shared<torch::nn::Module>();
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules{{"", root}};
  for (const auto& [name, tensor] : tensors) {
    std::shared_ptr<torch::nn::Module> owner = root;
    size_t begin = 0;
    for (size_t dot = name.find('.'); dot != std::string::npos; begin = dot + 1, dot = name.find('.', begin)) {
      auto& below = modules[name.substr(0, dot)];
      if (below == nullptr)
        below = owner->register_module(name.substr(begin, dot - begin), std::make_shared<torch::nn::Module>());
      owner = below;
    }
    owner->register_buffer(name.substr(begin), tensor);
  }
  return root;
}

/// The entries of a checkpoint, and what they point to.
struct State {
  explicit State(std::vector<std::pair<std::string, Value>> given) : values(std::move(given)) {
    for (auto& [name, value] : values) std::visit([&](auto& one) { items[name] = item(name, one); }, value);
  }
  io::CheckpointItem item(const std::string&, NamedTensors& tensors) {
    return modules.emplace_back(module_of(tensors)).get();
  }
  io::CheckpointItem item(const std::string& name, Optimizer& given) {
    return &(optimizers[name] = {given.first, given.second});
  }
  template <typename One>
  io::CheckpointItem item(const std::string&, One& one) {
    return &one;
  }
  /// The entries as they were loaded.
  std::vector<std::pair<std::string, Value>> found() const {
    auto all = values;
    for (auto& [name, value] : all) {
      const auto optimizer = optimizers.find(name);
      if (optimizer != optimizers.end()) value = Optimizer(optimizer->second.json, optimizer->second.tensors);
    }
    return all;
  }

  std::vector<std::pair<std::string, Value>> values;
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::map<std::string, io::PackedOptimizer> optimizers;
  io::CheckpointState items;
};

using Entries = std::vector<std::pair<std::string, Value>>;

/// Returns the entries; numbers, strings and JSON among them are those of the checkpoint.
Entries load(Communicator& world, const std::string& path, const Entries& given) {
  State state(given);
  io::load_checkpoint(world, path, state.items);
  return state.found();
}

void define_selection(py::module_& m) {
  py::class_<Selection>(m, "Selection", "A part of a dataset, not yet read.")
      .def_property_readonly("shape", &Selection::shape, "The sizes of the dims.")
      .def_property_readonly("ndim", &Selection::ndim, "The number of dims.")
      .def_property_readonly("dims", &Selection::dims, "The names of the dims; \"\" for a dim without a name.")
      .def_property_readonly(
          "dtype", [](const Selection& part) { return part.result_dtype(); }, "The dtype that read() gives.")
      .def_property_readonly(
          "name", [](const Selection& part) { return part.dataset().name(); }, "The path of the dataset in the file.")
      .def_property_readonly(
          "path", [](const Selection& part) { return part.dataset().path(); }, "The path of the file.")
      .def_property_readonly(
          "units", [](const Selection& part) { return part.dataset().units(); },
          "The attribute \"units\"; \"\" without one.")
      .def_property_readonly(
          "chunks", [](const Selection& part) { return part.dataset().chunks(); },
          "The sizes of a chunk; empty without chunks.")
      .def_property_readonly(
          "attrs", [](const Selection& part) { return part.dataset().attrs(); },
          "The attributes of the dataset, by name.")
      .def("_select", &Selection::select)
      .def(
          "read",
          [](const Selection& part, Dtype dtype, bool decode) {
            return part.read(ReadOptions{.dtype = dtype, .decode = decode});
          },
          py::arg("dtype") = py::none(), py::arg("decode") = false, Released(),
          "Reads the selected elements as a plain tensor. `decode` applies scale_factor, add_offset and missing "
          "values. Not collective.");
  m.def(
      "_scatter_selection",
      [](const Selection& part, const MeshPtr& mesh, const Placements& placements, Dtype dtype, bool decode) {
        return scatter_tensor(part, mesh, placements, {.dtype = dtype, .decode = decode});
      },
      Released());
}

}  // namespace

void define_files(py::module_& m) {
  define_selection(m);
  py::class_<File>(m, "File", "An open file with named datasets: HDF5, NetCDF 3 and 4, Zarr, .npy.")
      .def_property_readonly("path", &File::path, "The path of the file.")
      .def_property_readonly("format", &File::format,
                             "The format: \"HDF5\" (also of NetCDF-4), \"NetCDF-3 (classic)\", \"Zarr 3\" and so on.")
      .def_property_readonly(
          "attrs", [](const File& file) { return file.attrs(); }, "The attributes of the file, by name.")
      .def("keys", &File::keys, py::arg("group") = "/",
           "The names of the datasets and groups in a group. Not collective.")
      .def("datasets", &File::datasets, "The paths of all datasets of all groups. Not collective.")
      .def("__contains__", &File::has)
      .def("__getitem__", [](const File& file, const std::string& name) { return Selection(file[name]); })
      .def(
          "write",
          [](File& file, const std::string& name, const Tensor& tensor, const std::vector<std::string>& dims,
             const io::Attributes& attrs, const std::vector<int64_t>& chunks, int compression) {
            file.write(name, tensor.detach(),
                       {.attrs = attrs, .dims = dims, .chunks = chunks, .compression = compression});
          },
          py::arg("name"), py::arg("tensor"), py::kw_only(), py::arg("dims") = std::vector<std::string>{},
          py::arg("attrs") = io::Attributes{}, py::arg("chunks") = std::vector<int64_t>{}, py::arg("compression") = 0,
          Released(), "Writes a tensor as a dataset. For a ShardTensor collective over its mesh.")
      .def("close", &File::close, Released(),
           "Completes the file, which gets its name. Collective over the mesh if a ShardTensor was written.")
      .def("discard", &File::discard, "Deletes an unfinished file; an earlier one of that name stays. Not collective.");
  m.def(
      "open",
      [](const std::string& path, const std::string& mode, bool allow_external) {
        return io::open(path, mode, {.allow_external = allow_external});
      },
      py::arg("path"), py::arg("mode") = "r", py::kw_only(), py::arg("allow_external") = false, Released(),
      "Opens a file of HDF5, NetCDF or Zarr. mode: \"r\"; \"w\" writes a new one, which has its name after close(); "
      "\"a\" adds "
      "to one. `allow_external` follows links to other files. Not collective.");
  py::class_<io::CheckpointSaving>(m, "CheckpointSaving", "A checkpoint that is being written.")
      .def("wait", &io::CheckpointSaving::wait, Released(), "Returns the path when it is complete. Collective.")
      .def("is_done", &io::CheckpointSaving::is_done, "Whether this rank has written its part. Not collective.");
  m.def(
      "_save_checkpoint",
      [](Communicator& world, const std::string& path, const Entries& entries, bool async) {
        State state(entries);
        return io::save_checkpoint(world, path, state.items, {.async = async});
      },
      py::keep_alive<0, 1>(), Released());
  m.def("_load_checkpoint", &load, Released());
}

}  // namespace moonhalo::python
