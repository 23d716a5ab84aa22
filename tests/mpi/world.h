// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo::testing {

/// All ranks of this test program.
Communicator& mpi_world();

}  // namespace moonhalo::testing
