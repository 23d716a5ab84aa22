// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

/// A string that all processes of one running system have, also those in its containers, whose host names differ or
/// repeat. "" where the system has none.
std::string boot_id();

}  // namespace moonhalo
