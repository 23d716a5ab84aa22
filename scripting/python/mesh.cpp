// SPDX-License-Identifier: Apache-2.0
// Placements and meshes.
#include <string>
#include <variant>
#include <vector>

#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/scripting/python/module.h"

namespace moonhalo::python {

namespace {

using MeshDim = std::variant<int64_t, std::string>;

/// The number of a mesh dim that is given by number or by name.
int64_t number_of(const DeviceMesh& mesh, const MeshDim& dim) {
  if (const auto* name = std::get_if<std::string>(&dim)) return mesh.mesh_dim(*name);
  const int64_t given = std::get<int64_t>(dim), number = given < 0 ? given + mesh.ndim() : given;
  TORCH_CHECK_INDEX(number >= 0 && number < mesh.ndim(), "mesh dim ", given, " is out of range\n  have  ",
                    mesh.to_string(), "\n  fix   give a number from 0 to ", mesh.ndim() - 1, ", or a name");
  return number;
}

/// The mesh dim that is given, or the only one.
int64_t one_dim(const DeviceMesh& mesh, const std::optional<MeshDim>& dim, const char* who) {
  if (dim) return number_of(mesh, *dim);
  TORCH_CHECK_VALUE(mesh.ndim() == 1, who, ": the mesh has ", mesh.ndim(), " dims, and none is given\n  have  ",
                    mesh.to_string(), "\n  fix   ", who, "(\"", mesh.names().front(), "\")");
  return 0;
}

CommunicatorPtr group_of(const DeviceMesh& mesh, const std::optional<MeshDim>& dim) {
  return mesh.group(one_dim(mesh, dim, "get_group")).shared_from_this();
}

std::vector<int64_t> coordinates(const DeviceMesh& mesh) {
  std::vector<int64_t> found;
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) found.push_back(mesh.coordinate(dim));
  return found;
}

/// The same as one of torch.distributed.tensor, which models pass that were written for DTensor.
Placement placement_of_pytorch(const py::object& given) {
  const py::type type = py::type::of(given);
  const auto name = type.attr("__name__").cast<std::string>();
  if (type.attr("__module__").cast<std::string>() == "torch.distributed.tensor.placement_types") {
    if (name == "Shard") return shard(given.attr("dim").cast<int64_t>());
    if (name == "Replicate") return replicate();
    if (name == "Partial") return partial(parse_reduce_op(given.attr("reduce_op").cast<std::string>()));
  }
  throw py::type_error("Placement: a " + name +
                       " is not a placement\n  fix   give moonhalo's Shard, Replicate or Partial, or those of "
                       "torch.distributed.tensor");
}

void define_placement(py::module_& m) {
  py::class_<Placement>(m, "Placement", "What one mesh dim does to a tensor: Shard, Replicate or Partial.")
      .def(py::init(&placement_of_pytorch), py::arg("placement"),
           "The same as a Shard, Replicate or Partial of torch.distributed.tensor. Functions that take placements take "
           "these, too.")
      .def("__repr__", &Placement::to_string)
      .def("__eq__",
           [](const Placement& a, const py::object& b) {
             return py::isinstance<Placement>(b) && a == b.cast<const Placement&>();
           })
      .def("__hash__", [](const Placement& p) { return py::hash(py::str(p.to_string())); })
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return self; })
      .def(
          "is_shard",
          [](const Placement& p, std::optional<int64_t> dim) { return p.is_shard() && (!dim || p.dim == *dim); },
          py::arg("dim") = py::none(), "Whether it shards, or shards tensor dim `dim`.")
      .def(
          "is_replicate", [](const Placement& p) { return p.is_replicate(); },
          "Whether every rank has the whole tensor.")
      .def(
          "is_partial", [](const Placement& p) { return p.is_partial(); },
          "Whether ranks have addends that are still to be reduced.")
      .def_readonly("dim", &Placement::dim, "The tensor dim that Shard or Stored cuts.")
      .def_readonly("sizes", &Placement::sizes, "The rows of each block; empty if they are balanced.")
      .def_property_readonly(
          "is_stored", [](const Placement& p) { return p.stored; },
          "Whether it is Stored, a Shard to save memory alone.")
      .def_property_readonly(
          "reduce_op", [](const Placement& p) { return std::string(name(p.op)); },
          "The reduction of a Partial: \"sum\", \"avg\", \"max\", \"min\" or \"product\".");
  py::implicitly_convertible<py::object, Placement>();
  m.def("_shard", &shard);
  m.def("_stored", &stored);
  m.def("_replicate", [] { return replicate(); });
  m.def("_partial", [](const std::string& op) { return partial(parse_reduce_op(op)); });
}

}  // namespace

void define_mesh(py::module_& m) {
  define_placement(m);
  py::class_<DeviceMesh, MeshPtr>(m, "DeviceMesh", "A grid of ranks with named dims.")
      .def_property_readonly("shape", &DeviceMesh::shape, "The sizes of the mesh dims.")
      .def_property_readonly("ndim", &DeviceMesh::ndim, "The number of mesh dims.")
      .def_property_readonly("names", &DeviceMesh::names, "The names of the mesh dims, as a list.")
      .def_property_readonly(
          "mesh_dim_names", [](const DeviceMesh& mesh) { return py::tuple(py::cast(mesh.names())); },
          "The names of the mesh dims, as a tuple.")
      .def_property_readonly("device_type", &DeviceMesh::device_type, "\"cpu\" or \"cuda\", the device of the blocks.")
      .def_property_readonly("rank", &DeviceMesh::rank, "The index of this rank in the mesh, row by row.")
      .def(
          "size",
          [](const DeviceMesh& mesh, const std::optional<MeshDim>& dim) {
            return dim ? mesh.size(number_of(mesh, *dim)) : mesh.size();
          },
          py::arg("mesh_dim") = py::none(), "The number of ranks, or of those along one mesh dim.")
      .def(
          "coordinate",
          [](const DeviceMesh& mesh, const MeshDim& dim) { return mesh.coordinate(number_of(mesh, dim)); },
          py::arg("mesh_dim"), "This rank's index along a mesh dim, which has a name or a number.")
      .def("get_coordinate", &coordinates, "This rank's index along every mesh dim.")
      .def(
          "get_rank", [](const DeviceMesh& mesh) { return mesh.root()->rank(); }, "This rank in the whole mesh.")
      .def(
          "get_local_rank",
          [](const DeviceMesh& mesh, const std::optional<MeshDim>& dim) {
            return mesh.coordinate(one_dim(mesh, dim, "get_local_rank"));
          },
          py::arg("mesh_dim") = py::none(), "This rank's index along a mesh dim; without one, along the only one.")
      .def("get_group", &group_of, py::arg("mesh_dim") = py::none(),
           "The Communicator of the ranks that differ from this one only along a mesh dim.")
      .def(
          "get_all_groups",
          [](const DeviceMesh& mesh) {
            std::vector<CommunicatorPtr> groups;
            for (int64_t dim = 0; dim < mesh.ndim(); ++dim) groups.push_back(mesh.group(dim).shared_from_this());
            return groups;
          },
          "The Communicator of each mesh dim, as get_group.")
      .def(
          "barrier", [](const DeviceMesh& mesh) { mesh.group().barrier(); }, Released(),
          "Returns when all ranks of the mesh have called it. Collective.")
      .def(
          "__getitem__", [](DeviceMesh& mesh, const std::string& name) { return mesh[name]; }, Released())
      .def(
          "__getitem__", [](DeviceMesh& mesh, const std::vector<std::string>& names) { return mesh.slice(names); },
          Released())
      .def("__deepcopy__", [](const py::object& self, const py::dict&) { return self; })
      .def("__repr__", &DeviceMesh::to_string);
  m.def("init_device_mesh", &init_device_mesh, py::arg("world"), py::arg("device_type"), py::arg("shape"),
        py::arg("names") = std::vector<std::string>{}, Released(),
        "Arranges the ranks of `world` as a mesh. Collective over `world`.");
}

}  // namespace moonhalo::python
