// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moonhalo {

/// Says why has_mpi() is false; "" where it is true.
std::string missing_mpi();

/// True if the library of MPI is looked for on the machine that runs this: other machines of a job may lack it.
bool looks_for_mpi();

}  // namespace moonhalo
