# What Moonhalo's public headers need, as imported targets. Read by the build and by the installed package alike, so
# both find the same things in the same way. A host has its own HDF5, perhaps a parallel one, and its own Lua: they are
# not in here.

include("${CMAKE_CURRENT_LIST_DIR}/MoonhaloTorch.cmake")
if(MOONHALO_TORCH_ERROR AND NOT MOONHALO_TORCH_WANTED)
  message(FATAL_ERROR "${MOONHALO_TORCH_ERROR}")
endif()

find_package(Threads REQUIRED)
