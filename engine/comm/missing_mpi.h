// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

/// Says why has_mpi() is false; "" where it is true.
std::string missing_mpi();

}  // namespace moonhalo
