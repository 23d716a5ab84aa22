// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_device.h"

#include <c10/util/Exception.h>

#include <cstdlib>

#include "moonhalo/engine/sharding/mesh_device.h"
#include "tests/support/fake_device.h"

namespace moonhalo::testing {

const std::string& test_device() {
  static const std::string device = [] {
    const char* const named = std::getenv("MOONHALO_TEST_DEVICE");
    const std::string device = named == nullptr || *named == 0 ? "cpu" : named;
    TORCH_CHECK_VALUE(device == "cpu" || device == "fake", "MOONHALO_TEST_DEVICE=", device, " is neither cpu nor fake");
    if (device == "fake") fake::install();
    return device;
  }();
  return device;
}

at::Tensor on_device(const at::Tensor& tensor, const DeviceMesh& mesh) { return tensor.to(device_of(mesh)); }

}  // namespace moonhalo::testing
