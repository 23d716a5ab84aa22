// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

class ShardSpec;
struct SpecTable;

/// An n-D grid of ranks with named dimensions; the ranks of the world in row-major order.
///
///     init_device_mesh(world, "cpu", {2, 2}, {"data", "domain"})     rank 0 1
///                                                                        2 3
///
/// Every rank holds its own object. A slice (`mesh["domain"]`) is the row or column through this rank: a mesh of
/// its own with its own communicator, and always the same object. Specs of its ShardTensors are interned here.
class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  /// Use init_device_mesh. Collective over `group`.
  DeviceMesh(CommunicatorPtr group, std::string device_type, std::vector<int64_t> shape, std::vector<std::string> names,
             bool fake_groups = false);
  ~DeviceMesh();

  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& device_type() const { return device_type_; }
  /// Number of ranks; of one mesh dimension.
  int64_t size() const { return group_->size(); }
  int64_t size(int64_t mesh_dim) const { return shape_[mesh_dim]; }
  int64_t size(const std::string& name) const { return shape_[mesh_dim(name)]; }
  /// This rank's place: flat, and along a mesh dimension.
  int64_t rank() const { return group_->rank(); }
  int64_t coordinate(int64_t mesh_dim) const { return coordinate(rank(), mesh_dim); }
  int64_t coordinate(const std::string& name) const { return coordinate(mesh_dim(name)); }
  int64_t coordinate(int64_t rank, int64_t mesh_dim) const { return rank / strides_[mesh_dim] % shape_[mesh_dim]; }
  /// Index of a named dimension; ValueError with the nearest name otherwise.
  int64_t mesh_dim(const std::string& name) const;

  /// All ranks of the mesh, or those that differ from this one along `mesh_dim` only.
  Communicator& group() const { return *group_; }
  Communicator& group(int64_t mesh_dim) const { return *groups_[mesh_dim]; }
  CommunicatorPtr group_ptr() const { return group_; }

  /// For each rank of `other`, by its rank there, its rank in this mesh. Empty when the two do not hold the same ranks:
  /// made of the same world's ranks, in any arrangement. Collective over both meshes at each mesh's first use, then no
  /// communication.
  std::vector<int64_t> ranks_of(const DeviceMesh& other) const;

  /// The sub-mesh through this rank along the named dimensions. Several names: collective over the mesh at first use.
  std::shared_ptr<DeviceMesh> slice(const std::vector<std::string>& names);
  std::shared_ptr<DeviceMesh> operator[](const std::string& name) { return slice({name}); }

  /// The mesh that this is a slice of, itself if it is none, and which of its dims these are. ValueError when that mesh
  /// is no longer alive.
  std::shared_ptr<DeviceMesh> root() const;
  const std::vector<int64_t>& root_dims() const { return root_dims_; }

  /// `mesh(2x2: data, domain)`
  std::string to_string() const;

  SpecTable& specs() const { return *specs_; }

 private:
  const std::vector<int64_t>& members() const;

  CommunicatorPtr group_;
  std::string device_type_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  std::vector<std::string> names_;
  std::vector<CommunicatorPtr> groups_;
  bool fake_groups_;
  std::map<std::vector<std::string>, std::shared_ptr<DeviceMesh>> slices_;
  bool is_slice_ = false;
  std::weak_ptr<DeviceMesh> root_;  // of a slice; not owned, since it owns its slices
  std::vector<int64_t> root_dims_;
  std::unique_ptr<SpecTable> specs_;
  mutable std::vector<int64_t> members_;  // what tells the ranks apart in every mesh of one world; asked for once
};
using MeshPtr = std::shared_ptr<DeviceMesh>;

/// Arranges the ranks of `world` as a mesh. Collective over `world`. Names default to "dim_0", "dim_1", ...
/// ValueError, on every rank alike, when the shape's product is not the world's size or names repeat.
MeshPtr init_device_mesh(Communicator& world, const std::string& device_type, std::vector<int64_t> shape,
                         std::vector<std::string> names = {});

/// init_device_mesh calls this before it makes a mesh; one for the process (the dispatcher's).
void set_mesh_hook(void (*before_mesh)());

}  // namespace moonhalo
