// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Where the blocks of this rank are: "cuda:1" on the second rank of a host. Of a mesh of a fake world, which
/// computes nothing: the type alone.
c10::Device device_of(const DeviceMesh& mesh);

/// False if `tensor` is on another device than the blocks of this mesh. Anything is right in a fake world.
bool is_on_device(const DeviceMesh& mesh, const at::Tensor& tensor);

/// NotImplementedError unless blocks over `spec`'s mesh that are moved to `to`, a device or a type of devices, stay
/// where they are. The same answer on every rank, but where each has a device of its own and `to` has a number:
/// there each rank answers for itself.
void check_stays(const ShardSpec& spec, c10::Device to);
/// Gives all ranks one answer, since "cuda:0" is the device of the first rank alone. Collective where each rank has a
/// device of its own and `to` has a number, because LibTorch's own to() does nothing on a rank that is there already.
void check_all_stay(const ShardSpec& spec, c10::Device to);

}  // namespace moonhalo
