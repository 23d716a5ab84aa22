# What a wheel for other machines has in place of the library (scripting/python/build_wheel.py), in build/PRESET/wheel:
# the library from the same objects but for the MPI backend, which is a library of its own, and functions that stand for
# libraries of the network.
if(NOT UNIX OR NOT TARGET moonhalo_python)
  return()
endif()
set(wheel_folder "${PROJECT_BINARY_DIR}/wheel")

# HDF5 for files on S3 calls them; nothing here does.
add_library(moonhalo_no_network SHARED scripting/python/no_network.c)
target_link_options(moonhalo_no_network PRIVATE
                    "LINKER:--version-script=${PROJECT_SOURCE_DIR}/scripting/python/no_network.map")
set_target_properties(moonhalo_no_network PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${wheel_folder}"
                      LINK_DEPENDS "${PROJECT_SOURCE_DIR}/scripting/python/no_network.map")
# What `./dev wheel` builds.
add_custom_target(moonhalo_wheel DEPENDS moonhalo_python moonhalo_cli moonhalo_no_network)
if(NOT MPI_C_FOUND)
  return()
endif()

set(of_mpi "engine.comm.mpi")
add_library(moonhalo_without_mpi SHARED
    $<TARGET_OBJECTS:moonhalo_openmp> $<FILTER:$<TARGET_OBJECTS:moonhalo_engine>,EXCLUDE,${of_mpi}>
    $<TARGET_OBJECTS:moonhalo_ops> $<TARGET_OBJECTS:moonhalo_io> $<TARGET_OBJECTS:moonhalo_scripting>
    engine/comm/mpi/mpi_costs.cpp engine/comm/mpi/mpi_loaded.cpp)
if(TARGET moonhalo_cuda_kernels)
  target_sources(moonhalo_without_mpi PRIVATE $<TARGET_OBJECTS:moonhalo_cuda_kernels>)
endif()
moonhalo_use_common(moonhalo_without_mpi)
get_target_property(libraries moonhalo LINK_LIBRARIES)
list(FILTER libraries EXCLUDE REGEX "MPI::")
target_link_libraries(moonhalo_without_mpi PRIVATE ${libraries} ${CMAKE_DL_LIBS})
target_link_options(moonhalo_without_mpi PRIVATE -Wl,-Bsymbolic-functions)
set_target_properties(moonhalo_without_mpi PROPERTIES OUTPUT_NAME moonhalo VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR} LIBRARY_OUTPUT_DIRECTORY "${wheel_folder}")

add_library(moonhalo_mpi_plugin MODULE $<FILTER:$<TARGET_OBJECTS:moonhalo_engine>,INCLUDE,${of_mpi}>
    engine/comm/mpi/mpi_plugin.cpp)
moonhalo_use_common(moonhalo_mpi_plugin)
target_link_libraries(moonhalo_mpi_plugin PRIVATE moonhalo_without_mpi MPI::MPI_C)
# Both libraries have functions of the same names (communicator.h): here its own are called.
target_link_options(moonhalo_mpi_plugin PRIVATE -Wl,-Bsymbolic-functions)
set_target_properties(moonhalo_mpi_plugin PROPERTIES PREFIX lib OUTPUT_NAME moonhalo_mpi
                      LIBRARY_OUTPUT_DIRECTORY "${wheel_folder}")
add_dependencies(moonhalo_wheel moonhalo_without_mpi moonhalo_mpi_plugin)
