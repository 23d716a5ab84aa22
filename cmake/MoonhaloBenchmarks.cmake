# Benchmarks, one program a file, and those of their counts that tests compare with recorded ones. Read by
# MoonhaloTests.cmake.
find_package(benchmark REQUIRED)

moonhalo_add_precompiled_header(moonhalo_modules_pch pch_modules.h)
file(GLOB bench_files CONFIGURE_DEPENDS tests/bench/bench_*.cpp)
if(NOT MPI_C_FOUND)
  list(FILTER bench_files EXCLUDE REGEX "/bench_mpi_")
endif()
foreach(path IN LISTS bench_files)
  get_filename_component(name "${path}" NAME_WLE)
  moonhalo_add_program(${name} "${path}")
  file(STRINGS "${path}" modules REGEX "torch/(nn|optim)/|bench/models\\.h")
  if(modules)
    set_target_properties(${name} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM moonhalo_modules_pch)
  endif()
  if(NOT name STREQUAL bench_dispatch)  # which counts the calls of malloc
    moonhalo_use_tcmalloc(${name})
  endif()
  target_link_libraries(${name} PRIVATE benchmark::benchmark nlohmann_json::nlohmann_json)
  target_sources(${name} PRIVATE $<TARGET_OBJECTS:moonhalo_test_support>)
  target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest)
endforeach()

if(TARGET bench_mpi_sums)
  target_link_libraries(bench_mpi_sums PRIVATE MPI::MPI_C)
endif()

# LibTorch first: else its inline functions are found in our library, and plain tensors seem to run code of ours.
if(TARGET bench_dispatch)
  target_link_options(
    bench_dispatch PRIVATE "LINKER:--no-as-needed" "${MOONHALO_TORCH_DIR}/lib/libtorch_cpu.so"
    "${MOONHALO_TORCH_DIR}/lib/libc10.so" "LINKER:--as-needed")
endif()
# The price of a cached call, in instructions: recorded with the flags of the default preset.
if(TARGET bench_dispatch AND CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O2 -DNDEBUG" AND NOT MOONHALO_SANITIZE)
  moonhalo_add_test(NAME bench.dispatch_instructions COMMAND bench_dispatch --check
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(bench.dispatch_instructions PROPERTIES LABELS quick SKIP_RETURN_CODE 77
                                                              ENVIRONMENT "${test_environment}")
endif()

# That of an event of a profile, and of ranges while nothing records.
if(TARGET bench_profile AND CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O2 -DNDEBUG" AND NOT MOONHALO_SANITIZE)
  moonhalo_add_test(NAME bench.profile_instructions COMMAND bench_profile --check)
  set_tests_properties(bench.profile_instructions PROPERTIES LABELS quick ENVIRONMENT "${test_environment}")
endif()

# Counts of launches, copies, waits of the host.
if(TARGET bench_device)
  moonhalo_add_test(NAME bench.device_counts COMMAND bench_device --check WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(bench.device_counts PROPERTIES LABELS device ENVIRONMENT "${test_environment}")
endif()

# Four thread ranks need at most 1.25 of the memory of one process.
if(TARGET bench_memory AND MOONHALO_TCMALLOC)
  moonhalo_add_test(NAME bench.memory_of_thread_ranks COMMAND bench_memory --check 64 16)
  set_tests_properties(bench.memory_of_thread_ranks PROPERTIES ENVIRONMENT "${test_environment}")
endif()

include(cmake/MoonhaloPlanTests.cmake)
