// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo::testing {

/// The devices that tests of ranks compute on: "cpu", or what MOONHALO_TEST_DEVICE names, "fake"
/// (support/fake_device.h). on_mesh, shard_of and the oracle ask for it, and tests through them.
const std::string& test_device();

/// `tensor` where this rank's blocks lie.
at::Tensor on_device(const at::Tensor& tensor, const DeviceMesh& mesh);

}  // namespace moonhalo::testing
