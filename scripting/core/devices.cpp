// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/devices.h"

#include <ATen/Context.h>

namespace moonhalo::scripting {

c10::Device present(c10::Device device) {
  if (!device.is_cuda()) return device;
  TORCH_CHECK_VALUE(at::globalContext().hasCUDA(), "device \"", device.str(), "\": no CUDA device can be used here",
                    "\n  fix   leave the device out, or use a build and a machine with CUDA");
  const int64_t count = at::globalContext().getAcceleratorHooksInterface(c10::kCUDA).deviceCount();
  TORCH_CHECK_VALUE(device.index() < count, "device \"", device.str(), "\": there are ", count, " CUDA devices here",
                    "\n  fix   name one from cuda:0 to cuda:", count - 1);
  return device;
}

}  // namespace moonhalo::scripting
