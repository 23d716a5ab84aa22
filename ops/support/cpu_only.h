// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

namespace moonhalo {

/// For the plans of operators whose kernels run on CPUs alone. NotImplementedError, on every rank alike, for a mesh of
/// other devices.
inline void check_on_cpu(const char* op, const std::string& device_type) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::Device(device_type).is_cpu(), op, ": ShardTensors on a mesh of ", device_type,
                              "\n  have  kernels for the CPU\n  fix   distribute_tensor(full_tensor(x), mesh, placements) over a mesh of \"cpu\"");
}

}  // namespace moonhalo
