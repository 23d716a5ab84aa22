# Tests and benchmarks, one program per folder of tests/. No list to edit: new files are found.

find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
include(GoogleTest)

file(GLOB support_files CONFIGURE_DEPENDS tests/support/*.cpp)
if(support_files)
  moonhalo_add_objects(moonhalo_test_support ${support_files})
  target_link_libraries(moonhalo_test_support PRIVATE GTest::gtest GTest::gmock)
endif()

function(moonhalo_add_test_program target)
  moonhalo_add_program(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE GTest::gmock GTest::gtest)
  if(TARGET moonhalo_test_support)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:moonhalo_test_support>)
  endif()
endfunction()

foreach(folder engine ops io scripting)
  file(GLOB sources CONFIGURE_DEPENDS tests/${folder}/test_*.cpp)
  if(sources)
    moonhalo_add_test_program(test_${folder} ${sources})
    target_link_libraries(test_${folder} PRIVATE GTest::gtest_main nlohmann_json::nlohmann_json PNG::PNG)
    gtest_discover_tests(
      test_${folder}
      DISCOVERY_MODE PRE_TEST
      DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT 120 LABELS quick)
  endif()
endforeach()

file(GLOB mpi_tests CONFIGURE_DEPENDS tests/mpi/test_*.cpp)
if(mpi_tests AND MPI_CXX_FOUND)
  moonhalo_add_test_program(test_mpi ${mpi_tests})
  target_link_libraries(test_mpi PRIVATE MPI::MPI_CXX)
  target_compile_definitions(test_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  foreach(ranks 2 3 4)
    add_test(NAME mpi.ranks_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:test_mpi>)
    set_tests_properties(
      mpi.ranks_${ranks}
      PROPERTIES TIMEOUT 120 LABELS ranks PROCESSORS 2 ENVIRONMENT
                 "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMP_NUM_THREADS=1")
  endforeach()
endif()

if(TARGET moonhalo_cli)
  file(GLOB script_tests CONFIGURE_DEPENDS tests/scripting/*.lua)
  foreach(path IN LISTS script_tests)
    get_filename_component(name "${path}" NAME_WLE)
    add_test(NAME lua.${name} COMMAND moonhalo_cli test "${path}")
    set_tests_properties(lua.${name} PROPERTIES TIMEOUT 120 LABELS quick)
  endforeach()
endif()

file(GLOB bench_files CONFIGURE_DEPENDS tests/bench/bench_*.cpp)
foreach(path IN LISTS bench_files)
  get_filename_component(name "${path}" NAME_WLE)
  moonhalo_add_program(${name} "${path}")
  target_link_libraries(${name} PRIVATE benchmark::benchmark)
  if(TARGET moonhalo_test_support)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:moonhalo_test_support>)
    target_link_libraries(${name} PRIVATE GTest::gmock GTest::gtest)
  endif()
endforeach()
