// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/sharding/mesh_device.h"

#include <ATen/core/Tensor.h>

#include "moonhalo/engine/comm/communicator_device.h"

namespace moonhalo {

c10::Device device_of(const DeviceMesh& mesh) {
  const c10::Device type(mesh.device_type());
  if (mesh.group().is_fake() || type.is_cpu()) return type;
  return *device_of(mesh.group());
}

bool lies_on(const DeviceMesh& mesh, const at::Tensor& tensor) {
  return tensor.device() == device_of(mesh) || mesh.group().is_fake();
}

}  // namespace moonhalo
