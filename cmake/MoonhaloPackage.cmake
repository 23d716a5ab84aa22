# Install rules and the CMake package: find_package(moonhalo) gives moonhalo::moonhalo.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/moonhalo")
install(TARGETS moonhalo EXPORT moonhaloTargets)
if(TARGET moonhalo_cli)
  install(TARGETS moonhalo_cli)
endif()
install(DIRECTORY engine ops io scripting DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/moonhalo"
        FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_BINARY_DIR}/include/moonhalo/moonhalo.h" "${PROJECT_BINARY_DIR}/include/moonhalo/mpi_communicator.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/moonhalo")
install(EXPORT moonhaloTargets NAMESPACE moonhalo:: DESTINATION "${package_dir}")
configure_package_config_file(cmake/moonhaloConfig.cmake.in "${PROJECT_BINARY_DIR}/generated/moonhaloConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/moonhaloConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/generated/moonhaloConfig.cmake"
              "${PROJECT_BINARY_DIR}/generated/moonhaloConfigVersion.cmake" cmake/MoonhaloDependencies.cmake
              cmake/MoonhaloTorch.cmake DESTINATION "${package_dir}")
