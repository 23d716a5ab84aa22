// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/devices.h"

#include <c10/util/Exception.h>

#include <string>

#include "moonhalo/engine/comm/device/rank_device.h"

namespace moonhalo::scripting {

c10::Device present(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return device;
  const std::string type = c10::DeviceTypeName(device.type()), name = c10::DeviceTypeName(device.type(), true);
  const int64_t count = device_count(device.type());
  TORCH_CHECK_VALUE(count > 0, "device \"", device.str(), "\": no ", type, " device can be used here",
                    "\n  fix   leave the device out, or use a build and a machine with ", type);
  TORCH_CHECK_VALUE(device.index() < count, "device \"", device.str(), "\": there are ", count, " ", type,
                    " devices here", "\n  fix   name one from ", name, ":0 to ", name, ":", count - 1);
  return device;
}

}  // namespace moonhalo::scripting
