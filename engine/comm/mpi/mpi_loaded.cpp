// SPDX-License-Identifier: Apache-2.0
// MPI in the library of a wheel, which other machines use: the backend is a library beside it, which is loaded where
// MPI is asked for and the machine has the MPI that it was built with.
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <string>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/missing_mpi.h"
#include "moonhalo/engine/comm/mpi/mpi_plugin.h"

namespace moonhalo {
namespace {

struct Plugin {
  const MpiFunctions* functions = nullptr;
  std::string error;
};

Plugin load() {
  // Stays loaded: MPI ends with the process.
  void* const library = dlopen(kMpiPlugin, RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, kMpiPluginFunctions);
  if (found == nullptr) {
    const char* const error = dlerror();
    return {nullptr, error == nullptr ? kMpiPlugin : error};
  }
  return {reinterpret_cast<decltype(&moonhalo_mpi_functions)>(found)(), ""};
}

const Plugin& plugin() {
  static const Plugin loaded = load();
  return loaded;
}

const MpiFunctions& functions_for(const char* maker) {
  TORCH_CHECK_NOT_IMPLEMENTED(plugin().functions != nullptr, maker,
                              ": the MPI that this Moonhalo was built with is not here\n  have  ", plugin().error,
                              "\n  fix   load its module, or name its folder in LD_LIBRARY_PATH; or use backend "
                              "\"tcp\", with MASTER_ADDR and MASTER_PORT");
  return *plugin().functions;
}

}  // namespace

bool has_mpi() { return plugin().functions != nullptr; }
std::string missing_mpi() { return plugin().error; }
bool looks_for_mpi() { return true; }
CommunicatorPtr make_mpi_communicator(const void* mpi_comm) {
  return functions_for("make_mpi_communicator").make_communicator(mpi_comm);
}
CommunicatorPtr make_mpi_communicator_from_fortran(int mpi_fint) {
  return functions_for("make_mpi_communicator_from_fortran").make_communicator_from_fortran(mpi_fint);
}
CommunicatorPtr make_mpi_world() { return functions_for("make_mpi_world").make_world(); }

}  // namespace moonhalo
