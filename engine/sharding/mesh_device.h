// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Where the blocks of this rank lie: "cuda:1" on the second rank of a host. Of a mesh of a fake world, which computes
/// nothing: the type alone.
c10::Device device_of(const DeviceMesh& mesh);

/// False if `tensor` lies on another device than the blocks of this mesh. Anything is right in a fake world.
bool lies_on(const DeviceMesh& mesh, const at::Tensor& tensor);

}  // namespace moonhalo
