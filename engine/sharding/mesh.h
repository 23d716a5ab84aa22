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

/// An n-dimensional grid of ranks with named dims. It holds the ranks of the world in row-major order.
///
///     init_device_mesh(world, "cpu", {2, 2}, {"data", "domain"})     rank 0 1
///                                                                        2 3
///
/// Each rank has its own object. A slice, `mesh["domain"]`, is the row or column that contains this rank: rank 2 gets
/// the mesh of ranks 2 and 3. It is a mesh with its own communicator; repeated calls return the same object. A mesh
/// also interns the specs of its ShardTensors.
class DeviceMesh : public std::enable_shared_from_this<DeviceMesh> {
 public:
  /// Use init_device_mesh instead. Collective over `group`.
  DeviceMesh(CommunicatorPtr group, std::string device_type, std::vector<int64_t> shape, std::vector<std::string> names,
             bool fake_groups = false);
  ~DeviceMesh();

  /// The number of mesh dims, their sizes, their names, and "cpu" or "cuda".
  int64_t ndim() const { return static_cast<int64_t>(shape_.size()); }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& device_type() const { return device_type_; }
  /// Returns the number of ranks, or the size of one mesh dim. Not collective.
  int64_t size() const { return group_->size(); }
  int64_t size(int64_t mesh_dim) const { return shape_[mesh_dim]; }
  int64_t size(const std::string& name) const { return shape_[mesh_dim(name)]; }
  /// Returns this rank's index in the mesh, or its coordinate, or that of another rank, along a mesh dim. Not
  /// collective.
  int64_t rank() const { return group_->rank(); }
  int64_t coordinate(int64_t mesh_dim) const { return coordinate(rank(), mesh_dim); }
  int64_t coordinate(const std::string& name) const { return coordinate(mesh_dim(name)); }
  int64_t coordinate(int64_t rank, int64_t mesh_dim) const { return rank / strides_[mesh_dim] % shape_[mesh_dim]; }
  /// Returns the index of the mesh dim with this name. Throws ValueError, with the nearest name, if there is none. Not
  /// collective.
  int64_t mesh_dim(const std::string& name) const;

  /// Returns the group of all ranks of the mesh, or of the ranks that differ from this one only along `mesh_dim`. Not
  /// collective.
  Communicator& group() const { return *group_; }
  Communicator& group(int64_t mesh_dim) const { return *groups_[mesh_dim]; }
  CommunicatorPtr group_ptr() const { return group_; }

  /// Returns, for each rank of `other`, its rank in this mesh. Empty if the meshes hold different ranks. The
  /// arrangement may differ. The first call on a mesh is collective over both meshes; later calls do not communicate.
  std::vector<int64_t> ranks_of(const DeviceMesh& other) const;

  /// Returns the sub-mesh along the named dims that contains this rank. With several names, the first call is
  /// collective over the mesh.
  std::shared_ptr<DeviceMesh> slice(const std::vector<std::string>& names);
  std::shared_ptr<DeviceMesh> operator[](const std::string& name) { return slice({name}); }

  /// root() returns the mesh that this mesh is a slice of, or itself; root_dims() returns which of its dims these are.
  /// Throws ValueError if that mesh no longer exists.
  std::shared_ptr<DeviceMesh> root() const;
  const std::vector<int64_t>& root_dims() const { return root_dims_; }

  /// Returns `mesh(2x2: data, domain)`.
  std::string to_string() const;

  /// The interned specs, for `intern`.
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
  std::weak_ptr<DeviceMesh> root_;  // of a slice; weak, because a root owns its slices
  std::vector<int64_t> root_dims_;
  std::unique_ptr<SpecTable> specs_;
  mutable std::vector<int64_t> members_;  // identifies the ranks across all meshes of one world; fetched once
};
/// Shares a mesh; its ShardTensors share it too.
using MeshPtr = std::shared_ptr<DeviceMesh>;

/// Arranges the ranks of `world` as a mesh. Names default to "dim_0", "dim_1", ... Collective over `world`. Throws
/// ValueError on every rank if the product of `shape` is not the size of the world or a name occurs twice.
MeshPtr init_device_mesh(Communicator& world, const std::string& device_type, std::vector<int64_t> shape,
                         std::vector<std::string> names = {});

/// Sets the function that init_device_mesh calls before it makes a mesh. One per process; the dispatcher uses it. Not
/// collective.
void set_mesh_hook(void (*before_mesh)());

}  // namespace moonhalo
