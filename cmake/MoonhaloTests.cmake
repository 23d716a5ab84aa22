# Tests and benchmarks, one program per folder of tests/. No list to edit: new files are found.

find_package(GTest REQUIRED)
find_package(Python3 COMPONENTS Interpreter)
include(cmake/MoonhaloAddTest.cmake)

# One thread per rank: the ranks of a test are threads themselves. Python keeps what it compiles of PyTorch and others,
# which takes seconds of each process, also where the environment is not written to.
set(test_environment OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= "PYTHONPYCACHEPREFIX=${PROJECT_BINARY_DIR}/python_code")
if(MOONHALO_SANITIZE)
  set(suppressions "${PROJECT_SOURCE_DIR}/cmake/sanitizers")
  list(APPEND test_environment "ASAN_OPTIONS=detect_leaks=0:strict_string_checks=1"
       "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
       "TSAN_OPTIONS=suppressions='${suppressions}/tsan.txt':ignore_noninstrumented_modules=1:halt_on_error=1")
endif()
# `if (rank == 0) EXPECT_EQ(...)` is fine: GoogleTest's macros hold a complete if and else.
# They compile in half the time of -O1, and what they test is the library.
set(test_options -Wno-dangling-else)
set(unoptimized $<$<CONFIG:Release>:-O0>)
if(MOONHALO_SANITIZE)
  set(unoptimized "")
endif()

moonhalo_add_precompiled_header(moonhalo_test_pch pch_tests.h GTest::gtest GTest::gmock)
target_compile_options(moonhalo_test_pch PRIVATE ${unoptimized})

# moonhalo_add_optimized(NAME SOURCES...): those that compute much themselves, or are part of benchmarks too.
function(moonhalo_add_optimized name)
  moonhalo_add_objects(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE GTest::gtest GTest::gmock)
  target_compile_options(${name} PRIVATE ${test_options})
endfunction()

file(GLOB support_files CONFIGURE_DEPENDS tests/support/*.cpp)
moonhalo_add_optimized(moonhalo_test_support ${support_files})
set(device_table "${PROJECT_SOURCE_DIR}/tests/support/device_table.txt")
set_source_files_properties(tests/support/test_device.cpp PROPERTIES
    COMPILE_DEFINITIONS "MOONHALO_DEVICE_TABLES=\"${PROJECT_SOURCE_DIR}/tests/support\"")

# Calls of every operator of ATen, for the test program and for the fuzzer.
file(GLOB aten_files CONFIGURE_DEPENDS tests/aten/*.cpp)
list(FILTER aten_files EXCLUDE REGEX "/(test_[^/]*|fuzz)\\.cpp$")
add_library(moonhalo_aten_calls OBJECT ${aten_files})
moonhalo_use_common(moonhalo_aten_calls moonhalo_test_pch)
moonhalo_unite(moonhalo_aten_calls)
target_link_libraries(moonhalo_aten_calls PRIVATE GTest::gtest GTest::gmock)
target_compile_options(moonhalo_aten_calls PRIVATE ${test_options} ${unoptimized})

# A test program holds the layers that its folder may use and no others, so a link fails where layers are mixed up.
set(layers_engine engine ops)
set(layers_ops engine ops)
set(layers_aten engine ops)
set(layers_mpi engine ops io)
set(layers_io engine ops io)
set(layers_fuzz engine ops io scripting)
set(layers_gpu engine ops io scripting)
set(layers_scripting engine ops io scripting)

# moonhalo_add_test_program(FOLDER SOURCES [PROGRAM NAME] [SANITIZED])
function(moonhalo_add_test_program folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SANITIZED" "PROGRAM" "")
  set(target test_${folder})
  if(arg_PROGRAM)
    set(target ${arg_PROGRAM})
  endif()
  # The layers first: of functions that several objects hold (templates, inline ones) the linker takes the first.
  add_executable(${target})
  foreach(layer IN LISTS layers_${folder})
    if(TARGET moonhalo_${layer})
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:moonhalo_${layer}>)
    endif()
    if(layer STREQUAL engine)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:moonhalo_openmp>)
      target_link_libraries(${target} PRIVATE gomp)
    endif()
    if(layer STREQUAL ops AND TARGET moonhalo_cuda_kernels)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:moonhalo_cuda_kernels>)
    endif()
  endforeach()
  target_sources(${target} PRIVATE ${arg_UNPARSED_ARGUMENTS})
  if(arg_SANITIZED)
    # A precompiled header serves programs of equal flags only.
    set(sanitize -fsanitize=address,undefined -fno-omit-frame-pointer -g1 -O1)
    target_compile_options(${target} PRIVATE ${sanitize} $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_link_options(${target} PRIVATE ${sanitize})
    target_link_libraries(${target} PRIVATE moonhalo_common)
    target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch.h")
  else()
    moonhalo_use_common(${target} moonhalo_test_pch)
    target_compile_options(${target} PRIVATE ${unoptimized})
  endif()
  target_link_libraries(${target} PRIVATE GTest::gmock GTest::gtest nlohmann_json::nlohmann_json PNG::PNG
                                          PkgConfig::MOONHALO_EDIT PkgConfig::MOONHALO_CODECS PkgConfig::MOONHALO_YAML
                                          PkgConfig::MOONHALO_RE2 $<$<BOOL:${MPI_C_FOUND}>:MPI::MPI_C>)
  target_compile_definitions(${target} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_compile_options(${target} PRIVATE ${test_options})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:moonhalo_test_support>)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

set(test_folders engine ops aten io scripting)
if(MOONHALO_CUDA)
  list(APPEND test_folders gpu)
endif()
foreach(folder IN LISTS test_folders)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS tests/${folder}/test_*.cpp)
  if(MOONHALO_CUDA)
    list(FILTER sources EXCLUDE REGEX "/test_[^/]*_absent\\.cpp$")
  endif()
  if(folder STREQUAL aten)
    list(APPEND sources $<TARGET_OBJECTS:moonhalo_aten_calls>)
  endif()
  if(folder STREQUAL ops)
    # Device code on fibers, which are not for sanitizers, and statistics of random numbers.
    set(optimized ${sources})
    list(FILTER optimized INCLUDE REGEX "/(test_cuda_kernels|test_random_quality)\\.cpp$")
    list(REMOVE_ITEM sources ${optimized})
    if(MOONHALO_SANITIZE)
      list(FILTER optimized EXCLUDE REGEX "/test_cuda_kernels\\.cpp$")
    endif()
    moonhalo_add_optimized(moonhalo_optimized_tests ${optimized})
    list(APPEND sources $<TARGET_OBJECTS:moonhalo_optimized_tests>)
  endif()
  if(sources)
    set(label quick)
    if(folder STREQUAL gpu)
      set(label gpu)
    endif()
    moonhalo_add_test_program(${folder} ${sources})
    moonhalo_unite(test_${folder} ACROSS)
    target_link_libraries(test_${folder} PRIVATE GTest::gtest_main)
    if(folder STREQUAL gpu)
      target_link_libraries(test_gpu PRIVATE moonhalo::cuda_headers)
    endif()
    set(include_file "${PROJECT_BINARY_DIR}/generated/test_${folder}.cmake")
    file(
      GENERATE
      OUTPUT "${include_file}"
      CONTENT
        "set(program \"$<TARGET_FILE:test_${folder}>\")\nset(folder ${folder})\nset(labels ${label})
set(timeout ${hang_limit})\nset(in_folder \"${in_folder}\")\nset(environment \"${test_environment}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/gtest_suites.cmake\")\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include_file}")
  endif()
endforeach()

# The tests of operators once more on make-believe devices, but for those that the table skips.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${device_table}")
file(STRINGS tests/support/device_table.txt skipped REGEX "^skip ")
list(TRANSFORM skipped REPLACE "^skip ([^:]+):.*$" "\\1")
list(JOIN skipped ":" skipped)
file(STRINGS tests/support/device_table.txt long REGEX "^long ")
list(TRANSFORM long REPLACE "^long ([^:]+):.*$" "\\1")
list(JOIN long ":" long)
set(device_parts 10)
foreach(part RANGE 1 ${device_parts})
  math(EXPR index "${part} - 1")
  moonhalo_add_test(LONG NAME device.ops_${part} COMMAND test_ops "--gtest_filter=-${skipped}:${long}" --gtest_brief=1)
  set(part_environment "GTEST_TOTAL_SHARDS=${device_parts};GTEST_SHARD_INDEX=${index};TORCH_SHOW_CPP_STACKTRACES=0")
  set_tests_properties(device.ops_${part} PROPERTIES LABELS device ENVIRONMENT
                       "${test_environment};MOONHALO_TEST_DEVICE=fake;${part_environment}")
endforeach()
string(JOIN ":" device_engine HaloExchange.* Autograd.* Rows.* FullyShard.* LevelSizes.* UnitReducer.* LocalResults.*
       -Autograd.SecondDerivatives Rows.S13* Rows.S25*)
moonhalo_add_test(NAME device.engine COMMAND test_engine "--gtest_filter=${device_engine}"
                                    --gtest_brief=1)
# And with the double of NCCL between the ranks.
moonhalo_add_test(LONG NAME device.engine_nccl COMMAND test_engine "--gtest_filter=${device_engine}"
                                         --gtest_brief=1)
set(include_file "${PROJECT_BINARY_DIR}/generated/device_suites.cmake")
file(
  GENERATE
  OUTPUT "${include_file}"
  CONTENT
    "set(ops_program \"$<TARGET_FILE:test_ops>\")\nset(fuzz_program \"$<TARGET_FILE:moonhalo_fuzz>\")
set(skipped \"${skipped}\")\nset(long \"${long}\")\nset(timeout ${long_hang_limit})
set(in_folder \"${in_folder}\")\nset(environment \"${test_environment}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/device_suites.cmake\")\n")
set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${include_file}")
set_tests_properties(device.engine_nccl PROPERTIES LABELS device ENVIRONMENT
                     "${test_environment};MOONHALO_TEST_DEVICE=fake_nccl;TORCH_SHOW_CPP_STACKTRACES=0")
set_tests_properties(device.engine PROPERTIES LABELS device ENVIRONMENT
                                              "${test_environment};MOONHALO_TEST_DEVICE=fake")

# Convolutions of 2-byte types with the kernels of other processors: what this one lacks is the same as its best.
set(processors "ONEDNN_MAX_CPU_ISA=AVX2" "ONEDNN_MAX_CPU_ISA=AVX512_CORE" "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX" "ATEN_CPU_CAPABILITY=default" "ATEN_CPU_CAPABILITY=avx2"
    "ATEN_CPU_CAPABILITY=avx512")
foreach(processor IN LISTS processors)
  string(REGEX REPLACE "_.*=" "_" name "${processor}")
  string(TOLOWER "${name}" name)
  moonhalo_add_test(NAME ops.ThinConvolutions_${name} COMMAND test_ops
      --gtest_filter=ThinConvolutions.Of*:Convolution.OtherTypes)
  set_tests_properties(ops.ThinConvolutions_${name} PROPERTIES LABELS processors ENVIRONMENT
                                                               "${test_environment};${processor}")
endforeach()

moonhalo_add_test_program(aten tests/aten/fuzz.cpp $<TARGET_OBJECTS:moonhalo_aten_calls> PROGRAM moonhalo_fuzz)
# Every operator of ATen on blocks (X09), in parts.
set(sweep_parts 8)
foreach(part RANGE 1 ${sweep_parts})
  moonhalo_add_test(LONG NAME aten.sweep_${part} COMMAND moonhalo_fuzz --once --check --no-shrink
      --part ${part}/${sweep_parts})
  set_tests_properties(aten.sweep_${part} PROPERTIES LABELS sweep ENVIRONMENT "${test_environment}")
endforeach()

# Every operator with one rank left without rows.
set(empty_parts 4)
foreach(part RANGE 1 ${empty_parts})
  moonhalo_add_test(LONG NAME aten.empty_blocks_${part} COMMAND moonhalo_fuzz --once --empty 1 --no-shrink
      --part ${part}/${empty_parts})
  set_tests_properties(aten.empty_blocks_${part} PROPERTIES LABELS sweep ENVIRONMENT
                                                            "${test_environment}")
endforeach()

# Calls of one operator that differ in what decisions must not confuse, one after the other in one process.
set(pairs_parts 4)
foreach(part RANGE 1 ${pairs_parts})
  moonhalo_add_test(LONG NAME aten.pairs_${part} COMMAND moonhalo_fuzz --pairs --part ${part}/${pairs_parts})
  set_tests_properties(aten.pairs_${part} PROPERTIES LABELS sweep ENVIRONMENT "${test_environment}")
endforeach()

# Damaged files, plans, settings and checkpoints: what was found once, then for a quarter of a minute the same drawn
# ones in every run.
file(GLOB fuzz_files CONFIGURE_DEPENDS tests/fuzz/*.cpp)
moonhalo_add_test_program(fuzz ${fuzz_files} PROGRAM moonhalo_fuzz_input)
foreach(kind files plans configs checkpoints)
  moonhalo_add_test(LONG NAME fuzz.${kind} COMMAND moonhalo_fuzz_input --${kind} --minutes 0.25 --seed 1
                                     --found "${PROJECT_SOURCE_DIR}/tests/fuzz/found" --keep
                                     "${PROJECT_BINARY_DIR}/fuzz")
  set_tests_properties(fuzz.${kind} PROPERTIES LABELS fuzz ENVIRONMENT "${test_environment}")
endforeach()
# Y03: a thousand files of PyTorch.
moonhalo_add_test(NAME fuzz.models
         COMMAND moonhalo_fuzz_input --models --count 1000 --seed 1 --found "${PROJECT_SOURCE_DIR}/tests/fuzz/found"
                 --keep "${PROJECT_BINARY_DIR}/fuzz")
set_tests_properties(fuzz.models PROPERTIES LABELS fuzz ENVIRONMENT "${test_environment}")

# The readers of files alone under the sanitizers, all else as it is (`./dev fuzz --files --sanitize`): built in
# minutes, where the preset asan takes an hour or two.
if(NOT MOONHALO_SANITIZE)
  file(GLOB reader_files CONFIGURE_DEPENDS io/*/*.cpp)
  set(layers_sanitized engine ops scripting)
  moonhalo_add_test_program(sanitized ${fuzz_files} ${reader_files} PROGRAM moonhalo_fuzz_sanitized SANITIZED)
  set_target_properties(moonhalo_fuzz_sanitized PROPERTIES EXCLUDE_FROM_ALL ON)
endif()

# The same program under mpirun with 2, 3 and 4 ranks.
set(mpi_environment "${test_environment}")
file(GLOB mpi_tests CONFIGURE_DEPENDS tests/mpi/test_*.cpp)
if(mpi_tests AND MPI_C_FOUND)
  moonhalo_add_test_program(mpi ${mpi_tests})
  # More ranks than cores are tried on purpose; yielding keeps that quick.
  set(mpi_environment "${test_environment};OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
      OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1)
  foreach(ranks 2 3 4)
    moonhalo_add_test(NAME mpi.ranks_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:test_mpi>)
    set_tests_properties(
      mpi.ranks_${ranks}
      PROPERTIES
        LABELS ranks PROCESSORS 2 ENVIRONMENT
        "${mpi_environment}"
    )
  endforeach()
  # One rank ends badly: the others must not wait for it (X16).
  foreach(how killed abort exception returns)
    # Words that no other line has; a killed rank says nothing itself, so they are its launcher's (Open MPI, MPICH).
    set(text_killed "exited on signal 9|KILLED BY SIGNAL: 9")
    set(text_abort "rank 1 stops all ranks: the disk is full")
    set(text_exception "nothing catches this")
    set(text_returns "rank 1 ended without joining all_reduce")
    moonhalo_add_test(NAME mpi.${how}_rank
             COMMAND "${CMAKE_COMMAND}" "-DMPIEXEC=${MPIEXEC_EXECUTABLE}" "-DPROGRAM=$<TARGET_FILE:test_mpi>" -DRANKS=3
                     -DHOW=${how} "-DTEXT=${text_${how}}" -P "${PROJECT_SOURCE_DIR}/tests/mpi/killed_rank.cmake")
    set_tests_properties(mpi.${how}_rank PROPERTIES LABELS ranks PROCESSORS 2
                                                    ENVIRONMENT "${mpi_environment}")
  endforeach()
  # Ranks that come too late, or never, of which a limit of a second tells, or ten times that at the start and the end
  # of MPI (X16).
  set(late_text_late_init "MPI_Init_thread did not end within 10 s")
  set(late_status_late_init 3)
  set(late_text_late_dup "make_mpi_communicator timed out after 1 s on rank 0")
  set(late_status_late_dup 134)
  set(late_text_late_end "others did not within 10 s")
  set(late_status_late_end 3)
  set(late_text_exit_alone "rank 1 stops all ranks: it ends with exit status 5")
  set(late_status_exit_alone 5)
  foreach(how late_init late_dup late_end exit_alone)
    moonhalo_add_test(NAME mpi.${how}
             COMMAND "${CMAKE_COMMAND}" "-DMPIEXEC=${MPIEXEC_EXECUTABLE}" "-DPROGRAM=$<TARGET_FILE:test_mpi>" -DRANKS=2
                     -DHOW=${how} "-DTEXT=${late_text_${how}}" -DSTATUS=${late_status_${how}} -P
                     "${PROJECT_SOURCE_DIR}/tests/mpi/killed_rank.cmake")
    set_tests_properties(mpi.${how} PROPERTIES LABELS ranks ENVIRONMENT
                                               "${mpi_environment}")
  endforeach()
endif()

# A part of the tests of ranks once more with processes as ranks (MOONHALO_TEST_RANKS, tests/support/ranks.h): what
# wants three ranks of them. Not for tests that look at several ranks from outside, or at runs of another number of
# ranks.
set(mpi_part_engine Rows.* ShardTensor.* Halo*.* Autograd*.*)
set(mpi_part_ops Convolution.* Reduce.* Slice.* UnevenBlocks.* Fft.* Loss.* Matmul.* Softmax.* Norm.* HiddenHalos.*
    View.* -*RefusesShapes* *BytesAreTheFewest* *AWrongClassNumber* *ThinStrips*)
set(mpi_part_aten AtenTrials.X09*)
set(mpi_part_lua checkpoint_ranks3 checkpoint_layouts_ranks3 rows_plans_ranks3 rows_models_ranks3 parallelize_ranks3
    nn_sharded_ranks3
    unet_ranks3 fno_ranks3 vit_ranks3 pipeline_ranks3 pipeline_mistakes_ranks3 parallelize_config_ranks3
    data_open_ranks3 rank_layouts_ranks3)
list(APPEND mpi_part_lua data_statistics_ranks3 data_loader_ranks3 data_own_ranks3 profile_ranks3)
# N05, S28: three ways to divide the work at once.
list(APPEND mpi_part_lua pipeline_ranks8 fully_shard_ranks8)
if(MPI_C_FOUND)
  foreach(folder engine ops aten)
    list(JOIN mpi_part_${folder} ":" filter)
    moonhalo_add_test(LONG NAME mpi.part_${folder} COMMAND ${MPIEXEC_EXECUTABLE} -n 3 $<TARGET_FILE:test_${folder}>
                                             "--gtest_filter=${filter}" --gtest_brief=1 --gtest_color=no)
    set_tests_properties(mpi.part_${folder} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT
                                                       "${mpi_environment};MOONHALO_TEST_RANKS=mpi")
  endforeach()
  foreach(name IN LISTS mpi_part_lua)
    if(TARGET moonhalo_cli)
      string(REGEX MATCH "[0-9]+$" ranks ${name})
      moonhalo_add_test(NAME mpi.lua_${name} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:moonhalo_cli> test
                                            tests/scripting/${name}.lua WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
      set_tests_properties(mpi.lua_${name} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT
                                                      "${mpi_environment}")
    endif()
  endforeach()
endif()

# Blocks on make-believe devices whose ranks are processes: memory of the host, then MPI or TCP between them.
set(device_process_engine ${device_engine})
set(device_process_ops
    Convolution.*:Reduce.*:Matmul.*:Slice.*:-*RefusesShapes*:*BytesAreTheFewest*:*ThinStrips*:Reduce.S13*)
foreach(folder engine ops)
  if(MPI_C_FOUND)
    moonhalo_add_test(LONG NAME device.mpi_${folder} COMMAND ${MPIEXEC_EXECUTABLE} -n 3 $<TARGET_FILE:test_${folder}>
                                               "--gtest_filter=${device_process_${folder}}" --gtest_brief=1
                                               --gtest_color=no)
    set_tests_properties(device.mpi_${folder} PROPERTIES LABELS "device;ranks" PROCESSORS 2 ENVIRONMENT
                         "${mpi_environment};MOONHALO_TEST_RANKS=mpi;MOONHALO_TEST_DEVICE=fake")
  endif()
  moonhalo_add_test(LONG NAME device.tcp_${folder}
           COMMAND "${PROJECT_SOURCE_DIR}/tests/launch/start_ranks.sh" variables 3 $<TARGET_FILE:test_${folder}>
                   "--gtest_filter=${device_process_${folder}}" --gtest_brief=1 --gtest_color=no)
  set_tests_properties(device.tcp_${folder} PROPERTIES LABELS "device;ranks" PROCESSORS 2 ENVIRONMENT
                       "${test_environment};MOONHALO_TEST_RANKS=tcp;MOONHALO_TEST_DEVICE=fake")
endforeach()

include(cmake/MoonhaloEmbedTests.cmake)
include(cmake/MoonhaloFileTests.cmake)

# Scripts whose ranks part ways.
if(TARGET moonhalo_cli AND TARGET test_mpi)
  set(parting_texts_sum_and_mean "aten::sum|aten::mean|sum_and_mean.lua:6|sum_and_mean.lua:8")
  set(parting_texts_left "rank 1 ended without joining all_reduce|left.lua:6")
  set(parting_texts_order "aten::mul|aten::add|order.lua:7")
  set(parting_texts_throws "the disk of rank 1 is full")
  foreach(script sum_and_mean left order throws)
    moonhalo_add_test(NAME mpi.parting_${script}
             COMMAND "${CMAKE_COMMAND}" "-DMPIEXEC=${MPIEXEC_EXECUTABLE}" "-DPROGRAM=$<TARGET_FILE:moonhalo_cli>"
                     -DRANKS=3 "-DSCRIPT=${PROJECT_SOURCE_DIR}/tests/mpi/parting/${script}.lua"
                     "-DTEXTS=${parting_texts_${script}}" -P "${PROJECT_SOURCE_DIR}/tests/mpi/parting_script.cmake")
    set_tests_properties(mpi.parting_${script} PROPERTIES LABELS ranks PROCESSORS 2
                                                          ENVIRONMENT "${mpi_environment}")
  endforeach()
endif()

# How runs end, and how long ranks wait (X16), most of the time idle: NAME;SCRIPT;ARGUMENTS;STATUS;TEXT;BACKENDS
if(TARGET moonhalo_cli)
  foreach(
    case
      "exit_is_waited_for;exit;5 wait;5;rank 1 ended without joining barrier;threads,mpi"
      "exit_zero_is_waited_for;exit;0 wait;3;rank 1 ended without joining barrier;threads,mpi"
      "exit_beside_loops;exit;5 loop;5;;threads,mpi"
      "exit_of_one;exit;5 end;5;;threads,mpi"
      "suspended;suspended;10;0;went on;threads,mpi"
      "stopped;stopped;3;3;barrier timed out after 3 s;mpi"
      "failing_stage;failing_stage;;1;the valve is stuck;threads,mpi"
      "signalled_usr1;signalled;USR1;0;saved after SIGUSR1;threads,mpi,tcp"
      "signalled_term;signalled;TERM;0;saved after SIGTERM;threads,mpi,tcp"
      "slow_save;slow_save;3;0;saved.*3;threads,mpi"
      "short_of_memory;short_of_memory;;1;the valve is stuck;threads,mpi")
    list(GET case 0 name)
    list(GET case 1 script)
    list(GET case 2 arguments)
    list(GET case 3 status)
    list(GET case 4 text)
    list(GET case 5 backends)
    string(REPLACE "," ";" backends "${backends}")
    foreach(backend IN LISTS backends)
      set(launch "")
      set(rank_options "--ranks 3")
      if(backend STREQUAL mpi)
        if(NOT MPI_C_FOUND)
          continue()
        endif()
        set(launch "${MPIEXEC_EXECUTABLE} -n 3")
        set(rank_options "")
      elseif(backend STREQUAL tcp)
        set(launch "'${PROJECT_SOURCE_DIR}/tests/launch/start_ranks.sh' variables 3")
        set(rank_options "")
      endif()
      moonhalo_add_test(NAME endings.${name}_${backend}
               COMMAND "${CMAKE_COMMAND}" "-DLAUNCH=${launch}" "-DPROGRAM=$<TARGET_FILE:moonhalo_cli>"
                       "-DOPTIONS=${rank_options}" "-DSCRIPT=${PROJECT_SOURCE_DIR}/tests/mpi/endings/${script}.lua"
                       "-DARGUMENTS=${arguments}" -DSTATUS=${status} "-DTEXT=${text}" -P
                       "${PROJECT_SOURCE_DIR}/tests/mpi/ending_script.cmake")
      set_tests_properties(endings.${name}_${backend} PROPERTIES LABELS ranks ENVIRONMENT
                                                                 "${mpi_environment}")
    endforeach()
  endforeach()
endif()

if(TARGET moonhalo_cli)
  file(GLOB script_tests CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" tests/scripting/*.lua)
  foreach(path IN LISTS script_tests)
    get_filename_component(name "${path}" NAME_WLE)
    # NAME_ranks3.lua runs on three thread ranks.
    set(rank_options "")
    if(name MATCHES "_ranks([0-9]+)$")
      set(rank_options --ranks ${CMAKE_MATCH_1})
    endif()
    moonhalo_add_test(NAME lua.${name} COMMAND $<TARGET_FILE:moonhalo_cli> test ${path} ${rank_options}
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(lua.${name} PROPERTIES LABELS quick ENVIRONMENT "${test_environment}")
  endforeach()
  set_property(TEST lua.reference lua.reference_examples lua.reference_examples_ranks3 APPEND
               PROPERTY ENVIRONMENT "MOONHALO_REFERENCE=${reference_json}")
  # V10: ranks that are pretended.
  moonhalo_add_test(NAME lua.dry_run COMMAND moonhalo_cli run tests/scripting/support/dry_run.lua --backend fake
                            --ranks 64 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(lua.dry_run PROPERTIES LABELS quick ENVIRONMENT "${test_environment}")
endif()

# Scripts whose ranks are processes.
if(TARGET moonhalo_cli AND mpi_tests AND MPI_C_FOUND)
  foreach(module shared_order deterministic)
    moonhalo_add_test(NAME mpi.lua_${module}
             COMMAND ${MPIEXEC_EXECUTABLE} -n 3 $<TARGET_FILE:moonhalo_cli> run tests/scripting/support/run_all.lua --
                     support.${module}
             WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(mpi.lua_${module} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT
                                                      "${mpi_environment}")
  endforeach()
endif()

# Y10: the Lua blocks of the guide, the questions and other pages that run.
if(TARGET moonhalo_cli AND Python3_Interpreter_FOUND)
  moonhalo_add_test(NAME docs.guide COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/scripting/run_pages.py"
                                            $<TARGET_FILE:moonhalo_cli> "${reference_json}")
  set_tests_properties(docs.guide PROPERTIES LABELS quick PROCESSORS 2 ENVIRONMENT "${test_environment}")
endif()

# The messages of newcomers' mistakes, whole.
if(TARGET moonhalo_cli AND Python3_Interpreter_FOUND)
  set(mpiexec_option "")
  if(MPI_C_FOUND)
    set(mpiexec_option --mpiexec "${MPIEXEC_EXECUTABLE}")
  endif()
  moonhalo_add_test(LONG NAME lua.mistakes COMMAND Python3::Interpreter
                                     "${PROJECT_SOURCE_DIR}/tests/scripting/check_mistakes.py"
                                     $<TARGET_FILE:moonhalo_cli> ${mpiexec_option})
  set_tests_properties(lua.mistakes PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
endif()

# What the program does when it is killed, starved or given damaged files. Sanitizers need the memory that some cases
# take away.
if(TARGET moonhalo_cli AND Python3_Interpreter_FOUND AND NOT MOONHALO_SANITIZE)
  # moonhalo_add_faults_test(NAME OPTIONS...)
  function(moonhalo_add_faults_test name)
    moonhalo_add_test(LONG NAME faults.${name} COMMAND Python3::Interpreter
                                         "${PROJECT_SOURCE_DIR}/tests/faults/faults.py"
                                         $<TARGET_FILE:moonhalo_cli> --mpiexec "${MPIEXEC_EXECUTABLE}" ${ARGN})
    set_tests_properties(faults.${name} PROPERTIES LABELS faults PROCESSORS 2 RESOURCE_LOCK faults COST 100)
  endfunction()

  set(faults_parts 6)
  foreach(part RANGE 1 ${faults_parts})
    moonhalo_add_faults_test(part_${part} --part ${part}/${faults_parts})
  endforeach()
  moonhalo_add_faults_test(kills --kills 15)
endif()

include(cmake/MoonhaloExampleTests.cmake)

include(cmake/MoonhaloBenchmarks.cmake)

include(cmake/MoonhaloStyleTests.cmake)

include(cmake/MoonhaloPackageTests.cmake)

# As faults, the longest first, where no run before has told: what compiles, and what starts many processes.
foreach(name embed.solvers embed.package package embed.python_launches embed.python_ranks embed.python_installed
    embed.pytorch_models embed.wheel_alone package.another_torch examples.pretrained lua.mistakes lua.wrong_calls
    lua.run_sweep lua.Y10_help io.formats_archives examples.climate_float64 examples.climate_dropout)
  if(TEST ${name})
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
endforeach()
