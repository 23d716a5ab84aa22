// SPDX-License-Identifier: Apache-2.0
// The engine's own kernels on the simulated devices: the same code as on others, by a loop over its threads, the
// last one first, since threads have no order.
#include "moonhalo/engine/exchange/kernels/region_types.h"
#include "moonhalo/engine/random/kernels/fill.h"
#include "tests/support/fake_device.h"
#include "tests/support/fake_memory.h"

namespace moonhalo::testing::fake {
namespace {

struct RegionsLater {
  template <typename Kernel>
  static void run(regions::Launch launch, c10::Device device) {
    count_launch("moonhalo::regions");
    for (int r = 0; r < launch.count; ++r) {
      launch.regions[r].from = kernel_view(launch.regions[r].from);
      launch.regions[r].to = kernel_view(launch.regions[r].to);
    }
    enqueue(current_stream(device.index()), [launch] {
      for (int64_t i = launch.elements(); i-- > 0;) Kernel::run(launch, i);
    });
  }
};

struct FillLater {
  template <typename Kernel>
  static void run(random_fill::Launch launch, c10::Device device) {
    count_launch("moonhalo::fill");
    launch.to = kernel_view(launch.to);
    enqueue(current_stream(device.index()), [launch] {
      for (int64_t i = launch.elements; i-- > 0;) Kernel::run(launch, i);
    });
  }
};

}  // namespace

void register_kernels() {
  register_region_kernels(c10::kPrivateUse1, regions::kernels_by<RegionsLater>());
  register_fill_kernel(c10::kPrivateUse1, random_fill::kernel_by<FillLater>());
}

}  // namespace moonhalo::testing::fake
