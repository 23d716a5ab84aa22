// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/divided_work.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/sharding/spec_table.h"

namespace moonhalo {

void set_macs_per_byte(const MeshPtr& mesh, double macs_per_byte) {
  TORCH_CHECK_VALUE(
      macs_per_byte > 0, "set_macs_per_byte: ", macs_per_byte,
      " multiplications for a byte\n  have  a number that is not above 0\n  fix   give infinity to count bytes alone");
  TORCH_CHECK_VALUE(mesh->specs().size() == 0 || mesh->specs().macs_per_byte == macs_per_byte,
                    "set_macs_per_byte: tensors live on ", mesh->to_string(), " already\n  have  plans made for ",
                    mesh->specs().macs_per_byte, " multiplications for a byte\n  fix   set it when the mesh is made");
  mesh->specs().macs_per_byte = macs_per_byte;
}

double macs_per_byte(const DeviceMesh& mesh) { return mesh.specs().macs_per_byte; }

}  // namespace moonhalo
