// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/mesh.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/device/device_link.h"
#include "moonhalo/engine/comm/device/rank_device.h"
#include "moonhalo/engine/comm/fake/fake_subgroup.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/sharding/spec_table.h"

namespace moonhalo {
namespace {

using MeshHook = void (*)();
MeshHook& hook_of_meshes() {
  static MeshHook hook = nullptr;
  return hook;
}

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (int64_t d = static_cast<int64_t>(shape.size()) - 2; d >= 0; --d) {
    strides[d] = strides[d + 1] * shape[d + 1];
  }
  return strides;
}

// Every rank throws when one of them has no such device. A fake world is for planning: nothing is computed.
void check_usable(Communicator& world, c10::Device required, const std::vector<int64_t>& shape) {
  if (world.is_fake() || required.is_cpu()) return;
  const ScopedStatsPause check;
  at::Tensor devices = at::full({1}, device_count(required.type()), at::kLong);
  world.all_reduce(devices, ReduceOp::kMin);
  const int64_t count = *devices.const_data_ptr<int64_t>();
  std::string type = c10::DeviceTypeName(required.type());
  TORCH_CHECK_VALUE(count > 0, "init_device_mesh: no ", type, " device can be used here\n  have  device type \"",
                    required.str(), "\", mesh shape ", shape_string(shape), "\n  fix   use \"cpu\", or a build with ",
                    type, " on a machine that has a GPU");
  const std::string name = c10::DeviceTypeName(required.type(), /*lower_case=*/true);
  TORCH_CHECK_VALUE(required.index() < count, "init_device_mesh: there are ", count, " ", type,
                    " devices here\n  have  device type \"", required.str(), "\", mesh shape ", shape_string(shape),
                    "\n  fix   name one from ", name, ":0 to ", name, ":", count - 1);
}

// The ranks of `world` as a group that carries tensors of each rank's device, which becomes that of its thread.
CommunicatorPtr group_on(Communicator& world, c10::Device required) {
  if (required.is_cpu()) return host_communicator(world);
  const auto known = device_of(world);  // of a number that is named it says nothing: other ranks have others
  if (known && known->type() == required.type() && !required.has_index()) return world.shared_from_this();
  const CommunicatorPtr host = host_communicator(world);
  const c10::Device device = device_of_rank(*host, required);
  use_device(device);
  if (device.is_cuda() && host->size() > 1 && std::string_view(host->backend()) == "threads")
    load_linear_algebra(device);
  LinkChoice choice = choose_device_link(*host, device);
  return make_device_communicator(host, device, choice.link, std::move(choice.why));
}

// The ranks of the mesh that differ from this one only along `dims`, in row-major order.
std::vector<int64_t> ranks_along(const DeviceMesh& mesh, const std::vector<int64_t>& dims,
                                 const std::vector<int64_t>& strides) {
  std::vector<int64_t> ranks{mesh.rank()};
  for (const int64_t d : dims) ranks[0] -= mesh.coordinate(d) * strides[d];
  for (const int64_t d : dims) {
    std::vector<int64_t> more;
    for (const int64_t first : ranks) {
      for (int64_t i = 0; i < mesh.size(d); ++i) more.push_back(first + i * strides[d]);
    }
    ranks = std::move(more);
  }
  return ranks;
}

}  // namespace

DeviceMesh::DeviceMesh(CommunicatorPtr group, std::string device_type, std::vector<int64_t> shape,
                       std::vector<std::string> names, bool fake_groups)
    : group_(std::move(group)),
      device_type_(std::move(device_type)),
      shape_(std::move(shape)),
      strides_(row_major_strides(shape_)),
      names_(std::move(names)),
      fake_groups_(fake_groups),
      root_dims_(shape_.size()),
      specs_(std::make_unique<SpecTable>()) {
  std::iota(root_dims_.begin(), root_dims_.end(), int64_t{0});
  for (int64_t d = 0; d < ndim(); ++d) {
    if (shape_[d] == size()) {
      groups_.push_back(group_);
    } else if (fake_groups_) {
      groups_.push_back(make_fake_subgroup(*group_, ranks_along(*this, {d}, strides_)));
    } else {
      const int64_t color = rank() - coordinate(d) * strides_[d];
      groups_.push_back(group_->split(static_cast<int>(color), static_cast<int>(coordinate(d))));
    }
  }
}

DeviceMesh::~DeviceMesh() = default;

int64_t DeviceMesh::mesh_dim(const std::string& name) const {
  for (int64_t d = 0; d < ndim(); ++d) {
    if (names_[d] == name) return d;
  }
  TORCH_CHECK_VALUE(false, to_string(), ": no mesh dimension named \"", name, "\"", did_you_mean(name, names_),
                    "\n  have  ", c10::Join(", ", names_),
                    "\n  fix   name one of these, or name the dimensions where the mesh is made");
}

std::shared_ptr<DeviceMesh> DeviceMesh::slice(const std::vector<std::string>& names) {
  TORCH_CHECK_VALUE(!names.empty(), to_string(), ": a slice needs at least one dimension name");
  if (names == names_) return shared_from_this();
  auto& cached = slices_[names];
  if (cached) return cached;
  std::vector<int64_t> dims, shape;
  for (const auto& name : names) {
    dims.push_back(mesh_dim(name));
    shape.push_back(size(dims.back()));
    TORCH_CHECK_VALUE(dims.size() < 2 || dims[dims.size() - 2] < dims.back(), to_string(),
                      ": a slice names its dimensions in the mesh's order, each once");
  }
  CommunicatorPtr group;
  if (dims.size() == 1) {
    group = groups_[dims[0]];
  } else {
    int64_t color = rank(), key = 0;
    for (const int64_t d : dims) {
      color -= coordinate(d) * strides_[d];
      key = key * shape_[d] + coordinate(d);
    }
    group = fake_groups_ ? make_fake_subgroup(*group_, ranks_along(*this, dims, strides_))
                         : group_->split(static_cast<int>(color), static_cast<int>(key));
  }
  cached = std::make_shared<DeviceMesh>(group, device_type_, shape, names, fake_groups_);
  cached->is_slice_ = true;
  cached->root_ = root();
  cached->specs_->macs_per_byte = specs_->macs_per_byte;
  for (size_t i = 0; i < dims.size(); ++i) cached->root_dims_[i] = root_dims_[dims[i]];
  return cached;
}

std::shared_ptr<DeviceMesh> DeviceMesh::root() const {
  if (!is_slice_) return std::const_pointer_cast<DeviceMesh>(shared_from_this());
  auto whole = root_.lock();
  TORCH_CHECK_VALUE(whole != nullptr, to_string(), ": the mesh that this is a slice of is gone",
                    "\n  fix   keep the mesh that init_device_mesh made for as long as its slices are used");
  return whole;
}

const std::vector<int64_t>& DeviceMesh::members() const {
  if (!members_.empty()) return members_;
  members_.resize(size());
  if (fake_groups_) {  // only this rank exists: take equal ranks for the same
    std::iota(members_.begin(), members_.end(), int64_t{0});
    return members_;
  }
  // A rank's counters are one object in all groups of its world: with the process's own number they tell ranks apart.
  static const int64_t process = [] {
    std::random_device random;
    return static_cast<int64_t>((uint64_t{random()} << 32) ^ random());
  }();
  const at::Tensor mine = at::full({1}, process ^ reinterpret_cast<int64_t>(&group_->stats()), at::kLong);
  at::Tensor all = at::empty({size()}, at::kLong);
  group_->all_gather(mine, std::vector<int64_t>(size(), 1), all);
  std::copy_n(all.const_data_ptr<int64_t>(), size(), members_.begin());
  return members_;
}

std::vector<int64_t> DeviceMesh::ranks_of(const DeviceMesh& other) const {
  if (size() != other.size()) return {};
  std::vector<int64_t> result;
  const auto &mine = members(), &theirs = other.members();
  for (const int64_t member : theirs) {
    const auto found = std::find(mine.begin(), mine.end(), member);
    if (found == mine.end()) return {};
    result.push_back(found - mine.begin());
  }
  return result;
}

std::string DeviceMesh::to_string() const {
  return "mesh(" + c10::Join("x", shape_) + ": " + c10::Join(", ", names_) + ")";
}

void set_mesh_hook(void (*before_mesh)()) { hook_of_meshes() = before_mesh; }

MeshPtr init_device_mesh(Communicator& world, const std::string& device_type, std::vector<int64_t> shape,
                         std::vector<std::string> names) {
  std::string asked = "\"" + device_type + "\" " + shape_string(shape);
  for (const std::string& name : names) asked += " \"" + name + "\"";
  {
    // First of all, since all other errors depend on what is requested.
    const ScopedStatsPause check;
    check_same_on_all_ranks(world, "init_device_mesh", "meshes", asked);
  }
  const std::optional<c10::Device> required = parse_compute_device(device_type);
  TORCH_CHECK_VALUE(required.has_value(), "init_device_mesh: unknown device type \"", device_type,
                    "\"\n  fix   use \"cpu\" or \"cuda\"");
  TORCH_CHECK_VALUE(!shape.empty(), "init_device_mesh: the mesh needs at least one dimension");
  int64_t product = 1;
  for (const int64_t extent : shape) {
    TORCH_CHECK_VALUE(extent > 0, "init_device_mesh: a mesh dimension has no rank\n  have  shape ", shape_string(shape),
                      "\n  fix   give every dimension one rank or more");
    product *= extent;
  }
  TORCH_CHECK_VALUE(product == world.size(), "init_device_mesh: a mesh of shape ", shape_string(shape), " has ",
                    product, " ranks, the world has ", world.size(), "\n  fix   start the program with ", product,
                    " ranks (--ranks ", product, "), or choose a shape whose product is ", world.size());
  if (names.empty()) {
    for (size_t d = 0; d < shape.size(); ++d) names.push_back("dim_" + std::to_string(d));
  }
  TORCH_CHECK_VALUE(names.size() == shape.size(), "init_device_mesh: ", shape.size(), " dimensions but ", names.size(),
                    " names\n  have  shape ", shape_string(shape), ", names ", c10::Join(", ", names),
                    "\n  fix   give one name for each dimension, or a shape with as many numbers");
  TORCH_CHECK_VALUE(std::set<std::string>(names.begin(), names.end()).size() == names.size(),
                    "init_device_mesh: the names of the dimensions must differ\n  have  ", c10::Join(", ", names),
                    "\n  fix   give each dimension a name of its own");
  const bool fake = world.is_fake();  // for planning: nothing is computed
  check_usable(world, *required, shape);
  if (hook_of_meshes() != nullptr) hook_of_meshes()();
  return std::make_shared<DeviceMesh>(fake ? world.shared_from_this() : group_on(world, *required), required->str(),
                                      std::move(shape), std::move(names), fake);
}

}  // namespace moonhalo
