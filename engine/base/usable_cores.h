// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moonhalo {

/// Returns the number of cores that this process may use. Not collective.
int64_t usable_core_count();

}  // namespace moonhalo
