// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo::testing {

/// The devices that tests of ranks compute on: "cpu", or that which MOONHALO_TEST_DEVICE names, "fake"
/// (support/fake_device.h), also as "fake_nccl": messages go by the fake NCCL (support/fake_nccl.h), or "cuda:0", a
/// GPU that all ranks share. on_mesh, shard_of and the oracle ask for it, and tests through them.
const std::string& test_device();
/// True if it is not "cpu". Installs no devices, so a process that runs backwards and forks can ask.
bool is_on_devices();

/// `tensor` where this rank's blocks are.
at::Tensor on_device(const at::Tensor& tensor, const DeviceMesh& mesh);

/// True if the error of a program on blocks is to be expected on a device: of an operator that the tables
/// (support/device_table.txt; on a GPU support/cuda_table.txt too) list as gathered, or where `on_plain_tensors`, the
/// same on plain tensors of the device, ends in an error with words that it lists, such as that of a program which
/// holds tensors of the host. Counted, and printed at the end. Never true on the CPU.
bool is_expected_on_devices(const std::string& error, const std::function<void()>& on_plain_tensors);
/// True if the table lists `op` as gathered on devices. Never on the CPU.
bool is_gathered_on_devices(const std::string& op);
/// The names in the rows of the table that begin with `word`, in order: "gathers", "skip".
std::vector<std::string> rows_of_device_table(const std::string& word);

}  // namespace moonhalo::testing
