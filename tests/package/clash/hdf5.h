// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands for a parallel HDF5 of the host's.
#define HOST_HAS_PARALLEL_HDF5
using hid_t = int;
struct H5E_auto2_t {};
