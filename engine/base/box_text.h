// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moonhalo/engine/base/box.h"

namespace moonhalo {

/// "[0:4, 2:6]"
std::string box_string(const Box& box);

}  // namespace moonhalo
