# What is installed, and the libraries that it names. Read by MoonhaloTests.cmake.
if(Python3_Interpreter_FOUND)
  foreach(what Y21_library_paths needed_libraries)
    string(REPLACE Y21_ "" check ${what})
    moonhalo_add_test(NAME package.${what} COMMAND Python3::Interpreter
                      "${PROJECT_SOURCE_DIR}/tests/package/check_${check}.py"
                      $<TARGET_FILE:moonhalo_cli> $<TARGET_FILE:moonhalo>
                      $<$<TARGET_EXISTS:moonhalo_python>:$<TARGET_FILE:moonhalo_python>> COMMAND_EXPAND_LISTS)
    set_tests_properties(package.${what} PROPERTIES LABELS quick)
  endforeach()
endif()

# A program of somebody else's, built against the installed package. Not with the sanitizers: it would need their flags.
if(MOONHALO_INSTALL AND NOT MOONHALO_SANITIZE)
  string(REGEX MATCH "openmpi|mpich" mpi_name "${MPI_C_INCLUDE_DIRS}")
  moonhalo_add_test(
    LONG NAME package
    COMMAND
      "${CMAKE_COMMAND}" "-DBUILD_DIR=${PROJECT_BINARY_DIR}" "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}/tests/package"
      "-DGENERATOR=${CMAKE_GENERATOR}" "-DCXX=${CMAKE_CXX_COMPILER}" "-DMPIEXEC=${MPIEXEC_EXECUTABLE}"
      "-DMPI_NAME=${mpi_name}" -P "${PROJECT_SOURCE_DIR}/tests/package/build_and_run.cmake")
  set_tests_properties(package PROPERTIES LABELS package PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
  if(Python3_Interpreter_FOUND AND NOT MOONHALO_CUDA)
    moonhalo_add_test(LONG NAME package.another_torch COMMAND Python3::Interpreter
                      "${PROJECT_SOURCE_DIR}/tests/package/check_torch.py"
                      "${CMAKE_COMMAND}" "${PROJECT_BINARY_DIR}" "${PROJECT_SOURCE_DIR}" "${MOONHALO_TORCH_DIR}"
                      "${MOONHALO_TORCH_VERSION}")
    set_tests_properties(package.another_torch PROPERTIES LABELS package)
  endif()
endif()
