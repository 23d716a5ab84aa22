# Libraries that Moonhalo itself is built with, and that its users do not see.
find_package(PkgConfig REQUIRED)

# Lua errors must unwind C++ frames: only the C++ build of the Lua library will do.
pkg_check_modules(MOONHALO_LUA IMPORTED_TARGET GLOBAL lua5.4-c++)
if(NOT MOONHALO_LUA_FOUND)
  message(FATAL_ERROR "Lua: pkg-config knows no lua5.4-c++ (Lua 5.4 compiled as C++)\n"
                      "  fix   apt-get install liblua5.4-dev, or let `./dev build` install it, or name a folder "
                      "that has it:\n"
                      "        CMAKE_PREFIX_PATH, or PKG_CONFIG_PATH for that of lua5.4-c++.pc")
endif()

# The serial flavour is thread-safe; the MPI flavours are not, and one process may load only one.
pkg_check_modules(MOONHALO_HDF5 IMPORTED_TARGET GLOBAL hdf5-serial)
if(NOT MOONHALO_HDF5_FOUND)
  pkg_check_modules(MOONHALO_HDF5 IMPORTED_TARGET GLOBAL hdf5)
endif()
if(NOT MOONHALO_HDF5_FOUND OR "${MOONHALO_HDF5_INCLUDE_DIRS}" MATCHES "openmpi|mpich")
  message(FATAL_ERROR "HDF5: pkg-config knows no serial build\n"
                      "  have  '${MOONHALO_HDF5_INCLUDE_DIRS}'\n"
                      "  fix   apt-get install libhdf5-dev, or let `./dev build` install it, or name a folder "
                      "that has it:\n"
                      "        CMAKE_PREFIX_PATH, or PKG_CONFIG_PATH for that of hdf5.pc")
endif()
# Dimension scales, of the same package.
find_library(MOONHALO_HDF5_HL NAMES hdf5_serial_hl hdf5_hl HINTS ${MOONHALO_HDF5_LIBRARY_DIRS} REQUIRED)
target_link_libraries(PkgConfig::MOONHALO_HDF5 INTERFACE ${MOONHALO_HDF5_HL})
