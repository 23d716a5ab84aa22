// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/mesh_device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <string>

#include "moonhalo/engine/comm/device/device_communicators.h"
#include "moonhalo/engine/comm/stats_pause.h"

namespace moonhalo {
namespace {

bool stays(c10::Device from, c10::Device to) {
  return to.type() == from.type() && (from.is_cpu() || !to.has_index() || to == from);
}

void refuse_to_move(const ShardSpec& spec, c10::Device to, const std::string& where) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "to: ShardTensors stay on the device of their mesh\n  have  ", spec.to_string(), " on ",
      device_of(*spec.mesh()), ", expected on ", to, where,
      "\n  fix   make full_tensor(x) or to_local(x) plain and move that, or distribute_tensor() it ",
      "over a mesh of the other device");
}

}  // namespace

c10::Device device_of(const DeviceMesh& mesh) {
  const c10::Device type(mesh.device_type());
  if (mesh.group().is_fake() || type.is_cpu()) return type;
  return *device_of(mesh.group());
}

bool is_on_device(const DeviceMesh& mesh, const at::Tensor& tensor) {
  return tensor.device() == device_of(mesh) || mesh.group().is_fake();
}

void check_stays(const ShardSpec& spec, c10::Device to) {
  if (!stays(device_of(*spec.mesh()), to)) refuse_to_move(spec, to, "");
}

void check_all_stay(const ShardSpec& spec, c10::Device to) {
  const DeviceMesh& mesh = *spec.mesh();
  if (mesh.group().is_fake() || to.is_meta()) return;
  const c10::Device of_all(mesh.device_type());
  if (of_all.is_cpu() || of_all.has_index() || !to.has_index() || to.type() != of_all.type())
    return check_stays(spec, to);
  const ScopedStatsPause check;
  at::Tensor first = at::full({1}, stays(device_of(mesh), to) ? mesh.size() : mesh.rank(), at::kLong);
  mesh.group().all_reduce(first, ReduceOp::kMin);
  const int64_t rank = *first.const_data_ptr<int64_t>();
  if (rank < mesh.size()) refuse_to_move(spec, to, ", where the blocks of rank " + std::to_string(rank) + " are not");
}

}  // namespace moonhalo
