// SPDX-License-Identifier: Apache-2.0
// A host whose own folders are called engine/, io/ and ops/, and whose HDF5 and Lua are others than Moonhalo's (X15):
// its sources get its own headers, before Moonhalo's and after them.
#include "engine/mesh.h"

#include <moonhalo/moonhalo.h>
#include <moonhalo/moonhalo_c.h>
#include <moonhalo/session.h>
#include <moonhalo/version.h>

#include <cstdio>

#include <hdf5.h>
#include <lua.hpp>

#include "io/scatter.h"
#include "ops/shape.h"

#if defined(_HDF5_H) || defined(HDF5_H) || defined(_H5public_H) || defined(H5public_H)
#error "Moonhalo's headers bring its HDF5"
#endif
#if defined(lua_h) || defined(LUA_VERSION)
#error "Moonhalo's headers bring its Lua"
#endif
#ifdef MPI_VERSION
#error "Moonhalo's headers bring its MPI"
#endif
#if !defined(HOST_HAS_PARALLEL_HDF5) || HOST_LUA_VERSION != 501
#error "the host's own headers were not found"
#endif
static_assert(sizeof(hid_t) == sizeof(int));

int main() {
  const HostMesh mesh;
  double sum = 0;
  moonhalo::run_ranks(2, [&](moonhalo::Communicator& world) {
    const auto ranks = moonhalo::init_device_mesh(world, "cpu", {2}, {"rows"});
    const at::Tensor x = moonhalo::distribute_tensor(at::ones({mesh.cells, 2}), ranks, {moonhalo::shard(0)});
    const double total = x.sum().item<double>();
    if (world.rank() == 0) sum = total;
  });
  if (sum != 2 * mesh.cells || host_scatter() + host_shape() != 24) return 1;
  std::printf("moonhalo %s: a host with engine/, io/, ops/, an HDF5 and a Lua of its own\n", moonhalo::kVersion);
}
