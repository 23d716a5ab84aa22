// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace moonhalo::scripting {

/// `device`, which must be one that this build and machine have; ValueError otherwise.
c10::Device present(c10::Device device);

}  // namespace moonhalo::scripting
