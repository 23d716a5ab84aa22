// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "moonhalo/engine/launch/launch.h"

namespace moonhalo {

/// The lines of `moonhalo env`: launcher, rank, what carries control and tensors, the device of this rank, and what
/// the environment has that is not believed or that slows runs down. `device`: "cpu", "cuda", "cuda:1". Asks this
/// process alone and never throws: what is missing is said in its line.
std::string describe(const Launch& launch, const std::string& device,
                     const std::function<const char*(const char*)>& getenv);

}  // namespace moonhalo
