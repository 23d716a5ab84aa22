// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Sets how many multiplications a rank of `mesh`, and of slices taken from it afterwards, makes while it sends a byte.
/// Products are then divided where that saves more time than what they send for it takes. Infinity, the default, counts
/// bytes alone: what is cheap to bring together is multiplied on every rank. Results are the same but for rounding.
/// Every rank gives the same. ValueError for a number that is not above 0, or when tensors live on the mesh: their
/// plans are made.
void set_macs_per_byte(const MeshPtr& mesh, double macs_per_byte);
double macs_per_byte(const DeviceMesh& mesh);

}  // namespace moonhalo
