# Install rules and the CMake package: find_package(moonhalo) gives moonhalo::moonhalo, moonhalo::c and
# moonhalo::fortran, and moonhalo::testing where GoogleTest is found; find_package(moonhalo COMPONENTS c) gives
# moonhalo::c and moonhalo::fortran alone, which need neither LibTorch's headers nor C++.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/moonhalo")
# The pages and the examples; the site, where `./dev docs` has built it.
install(DIRECTORY docs/ DESTINATION "${CMAKE_INSTALL_DATADIR}/moonhalo/docs"
        FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png" PATTERN tools EXCLUDE PATTERN gpu EXCLUDE)
install(DIRECTORY configs/machines DESTINATION "${CMAKE_INSTALL_DATADIR}/moonhalo" FILES_MATCHING PATTERN "*.json")
# Runs leave folders output* and exported models (*.pt2) beside the examples.
install(DIRECTORY examples DESTINATION "${CMAKE_INSTALL_DATADIR}/moonhalo"
        PATTERN "climate/data" EXCLUDE PATTERN "output*" EXCLUDE PATTERN "*.pt2" EXCLUDE PATTERN __pycache__ EXCLUDE)
install(DIRECTORY build/docs/html DESTINATION "${CMAKE_INSTALL_DOCDIR}" OPTIONAL)
install(TARGETS moonhalo EXPORT moonhaloTargets)
if(TARGET moonhalo_cli)
  install(TARGETS moonhalo_cli)
endif()
# CMake ends the path of what it builds and then installs with ":", by which the system's loader takes libraries that
# lie in the current folder. One path that serves both places has no such end.
foreach(target moonhalo moonhalo_cli)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
  endif()
endforeach()
# Headers: those of cmake/public_headers.txt, which CMakeLists.txt has read, with all that they include, nothing else.
set(include "${PROJECT_BINARY_DIR}/include")
header_closure(installed_headers "${include}" ${public_headers})
foreach(header IN LISTS installed_headers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${include}/${header}")
  get_filename_component(folder "${header}" DIRECTORY)
  get_filename_component(path "${include}/${header}" REALPATH)
  install(FILES "${path}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
endforeach()
list(LENGTH installed_headers header_count)
message(STATUS "${header_count} public headers")
install(EXPORT moonhaloTargets NAMESPACE moonhalo:: DESTINATION "${package_dir}")
install(TARGETS moonhalo_c moonhalo_fortran moonhalo_fortran_mpi EXPORT moonhaloCTargets)
install(FILES scripting/embed/moonhalo.f90 scripting/embed/moonhalo_fortran.c scripting/embed/moonhalo_fortran_mpi.c
    DESTINATION "${CMAKE_INSTALL_DATADIR}/moonhalo")
# For projects without CMake, the C interface alone. Relative to where it lies, so that an install can move.
file(RELATIVE_PATH prefix_from_pc "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
file(CONFIGURE OUTPUT generated/moonhalo.pc @ONLY CONTENT
"prefix=\${pcfiledir}/@prefix_from_pc@
libdir=\${prefix}/@CMAKE_INSTALL_LIBDIR@
includedir=\${prefix}/@CMAKE_INSTALL_INCLUDEDIR@

Name: moonhalo
Description: Networks inside simulation codes, on their blocks and their MPI: moonhalo_c.h
Version: @PROJECT_VERSION@
Cflags: -I\${includedir}
Libs: -L\${libdir} -lmoonhalo -Wl,-rpath,\${libdir}
")
install(FILES "${PROJECT_BINARY_DIR}/generated/moonhalo.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(EXPORT moonhaloCTargets NAMESPACE moonhalo:: DESTINATION "${package_dir}")
configure_package_config_file(cmake/moonhaloConfig.cmake.in "${PROJECT_BINARY_DIR}/generated/moonhaloConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/moonhaloConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/generated/moonhaloConfig.cmake"
              "${PROJECT_BINARY_DIR}/generated/moonhaloConfigVersion.cmake" cmake/MoonhaloDependencies.cmake
              cmake/MoonhaloTorch.cmake DESTINATION "${package_dir}")
