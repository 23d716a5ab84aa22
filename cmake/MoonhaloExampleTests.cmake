# The examples: losses that do not depend on the ranks (V01, X02), and a simulation that embeds the engine (X15).
# Read by MoonhaloTests.cmake.
if(TARGET test_mpi)
  # Y18: what more ranks than cores send.
  foreach(ranks 8 16)
    moonhalo_add_test(NAME mpi.counts_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} $<TARGET_FILE:test_mpi>
                                           --gtest_filter=MpiCollectiveCounts.*)
    set_tests_properties(mpi.counts_${ranks} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
  endforeach()
endif()
# Y18: what processes over TCP send.
foreach(ranks 2 3 4 8 16)
  moonhalo_add_test(NAME tcp.counts_${ranks}
           COMMAND "${PROJECT_SOURCE_DIR}/tests/launch/start_ranks.sh" variables ${ranks} $<TARGET_FILE:test_engine>
                   "--gtest_filter=CollectiveCounts.Y18_OfRanks*" --gtest_brief=1 --gtest_color=no)
  set_tests_properties(tcp.counts_${ranks} PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT
                       "${test_environment};MOONHALO_TEST_RANKS=tcp")
endforeach()
if(TARGET moonhalo_cli)
  # The launcher of LibTorch's wheel.
  find_program(MOONHALO_TORCHRUN torchrun PATHS "${MOONHALO_TORCH_DIR}/../../../../bin" NO_DEFAULT_PATH)
  mark_as_advanced(MOONHALO_TORCHRUN)
  # X16, X22: ranks over TCP of which one fails, ends, is killed or stopped, or never comes.
  moonhalo_add_test(NAME launch.parting COMMAND "${PROJECT_SOURCE_DIR}/tests/launch/parting.sh"
                                       "$<TARGET_FILE:moonhalo_cli>" "${PROJECT_SOURCE_DIR}")
  set_tests_properties(launch.parting PROPERTIES LABELS ranks ENVIRONMENT "${test_environment}")
  # Y18: a rank over TCP that is killed while messages go round.
  moonhalo_add_test(NAME launch.rounds COMMAND "${PROJECT_SOURCE_DIR}/tests/launch/rounds.sh"
                                      "$<TARGET_FILE:moonhalo_cli>" "${PROJECT_SOURCE_DIR}" 4 8)
  set_tests_properties(launch.rounds PROPERTIES LABELS ranks PROCESSORS 2 ENVIRONMENT "${test_environment}")
  # X16: eight processes. On a machine that does nothing else, 3 s and 0.5 s are enough (times.sh has limits for that).
  set(times_launchers variables)
  if(MOONHALO_TORCHRUN)
    list(APPEND times_launchers torchrun)
  endif()
  foreach(launcher IN LISTS times_launchers)
    moonhalo_add_test(NAME launch.times_${launcher} COMMAND "${PROJECT_SOURCE_DIR}/tests/launch/times.sh"
                                                   "$<TARGET_FILE:moonhalo_cli>" "${PROJECT_SOURCE_DIR}" ${launcher})
    set_tests_properties(launch.times_${launcher} PROPERTIES LABELS ranks
                                                             ENVIRONMENT
                                                             "${test_environment};TORCHRUN=${MOONHALO_TORCHRUN}")
  endforeach()
  # moonhalo_add_losses_test(NAME SCRIPT STEPS TOLERANCE RANKS SETTINGS [MPI] [TCP] [PLAIN]): lists with commas; PLAIN:
  # the script can run on plain tensors, which is then the reference
  function(moonhalo_add_losses_test name script steps tolerance ranks settings)
    set(launcher "")
    if("MPI" IN_LIST ARGN)
      set(launcher "$<$<BOOL:${MPI_C_FOUND}>:${MPIEXEC_EXECUTABLE}>")
    endif()
    set(launchers "")
    if("TCP" IN_LIST ARGN)
      set(launchers slurm)
      if(MOONHALO_TORCHRUN)
        string(APPEND launchers ,torchrun)
      endif()
      if(MOONHALO_MPICH_RUN)
        string(APPEND launchers ,mpich)
      endif()
    endif()
    set(reference "")
    if("PLAIN" IN_LIST ARGN)
      set(reference "plain=true")
    endif()
    moonhalo_add_test(LONG NAME examples.${name}
             COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:moonhalo_cli>" "-DSOURCE=${PROJECT_SOURCE_DIR}"
                     "-DSCRIPT=${script}" -DSTEPS=${steps} -DTOLERANCE=${tolerance}
                     "-DRANKS=${ranks}" "-DSETTINGS=${settings}" "-DMPIEXEC=${launcher}" "-DLAUNCHERS=${launchers}"
                     "-DREFERENCE=${reference}" -P "${PROJECT_SOURCE_DIR}/tests/examples/losses.cmake")
    set_tests_properties(examples.${name} PROPERTIES LABELS examples PROCESSORS 2 ENVIRONMENT
                                                     "${mpi_environment};TORCHRUN=${MOONHALO_TORCHRUN}")
  endfunction()
  # V01: the reference is the script on plain tensors.
  foreach(case "float64;1e-10;0;float64" "float32;1e-5;0;float32" "float64;1e-10;0.2;dropout")
    list(GET case 0 dtype)
    list(GET case 1 tolerance)
    list(GET case 2 dropout)
    list(GET case 3 name)
    moonhalo_add_losses_test(one_script_${name} tests/examples/one_script.lua 5 ${tolerance} 1,2,3,4
                             "dtype=${dtype},dropout=${dropout}" PLAIN MPI)
  endforeach()
  # The transports are another matter than dtypes and masks: one of the three runs over TCP.
  foreach(case "float64;1e-10;0;float64;TCP" "float32;1e-5;0;float32;" "float64;1e-10;0.2;dropout;")
    list(GET case 0 dtype)
    list(GET case 1 tolerance)
    list(GET case 2 dropout)
    list(GET case 3 name)
    list(GET case 4 tcp)
    moonhalo_add_losses_test(
      climate_${name} examples/climate/train.lua 10 ${tolerance} 1,2,3,4,8
      "dtype=${dtype},batch=8,width=8,dropout=${dropout},plot=false,output=@OUTPUT@/climate" MPI ${tcp})
  endforeach()
  moonhalo_add_losses_test(diffusion examples/climate/diffusion.lua 3 1e-10 1,3,4
                           "dtype=float64,batch=4,dim=16,depth=1,members=2,years=2,levels=2,plot=false")
  moonhalo_add_losses_test(channel examples/channel/train.lua 5 1e-10 1,3,4
                           "dtype=float64,batch=4,width=8,trains=2,pictures=16")
  # Y19: nodes and edges are cut.
  moonhalo_add_losses_test(graph examples/graph/train.lua 4 1e-10 1,2,3,4 "dtype=float64,width=8,layers=2")
  # Saved on some ranks, continued on others: X12, S11, N39 with other cuts of data and weights; X12, X20, X21 on data
  # in files.
  foreach(name resume data_resume)
    moonhalo_add_test(NAME examples.${name}
             COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:moonhalo_cli>"
                     "-DSCRIPT=${PROJECT_SOURCE_DIR}/tests/examples/${name}.lua"
                     "-DMPIEXEC=$<$<BOOL:${MPI_C_FOUND}>:${MPIEXEC_EXECUTABLE}>" -P
                     "${PROJECT_SOURCE_DIR}/tests/examples/resume.cmake")
    set_tests_properties(examples.${name} PROPERTIES LABELS examples PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
  endforeach()
  # V10, V15, N05, N10, N39: data, domain and tensor parallelism at once, by hand and by policies, resumed on other
  # ranks.
  moonhalo_add_test(LONG NAME examples.train_at_scale
           COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:moonhalo_cli>" "-DSOURCE=${PROJECT_SOURCE_DIR}"
                   -P "${PROJECT_SOURCE_DIR}/tests/examples/scale.cmake")
  set_tests_properties(examples.train_at_scale PROPERTIES LABELS examples PROCESSORS 2 ENVIRONMENT
                                                          "${test_environment}")
  # X12, X13, X17, X21: a run on data that stops and goes on with other ranks.
  moonhalo_add_test(NAME examples.sst
           COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:moonhalo_cli>" "-DSOURCE=${PROJECT_SOURCE_DIR}"
                   -P "${PROJECT_SOURCE_DIR}/tests/examples/sst.cmake")
  set_tests_properties(examples.sst PROPERTIES LABELS examples PROCESSORS 2 ENVIRONMENT "${test_environment}")
  # What pages show: the first script of README.md, and that of a section (S22).
  set(page_readme README.md - 20 1 3)
  set(page_parallelism docs/parallelism.md "Domain parallel and fully sharded together" 5 1 2 3 4 6)
  foreach(name readme parallelism)
    list(GET page_${name} 0 page)
    list(GET page_${name} 1 heading)
    list(SUBLIST page_${name} 2 -1 steps_and_ranks)
    moonhalo_add_test(NAME examples.${name} COMMAND Python3::Interpreter
                                            "${PROJECT_SOURCE_DIR}/tests/examples/check_page.py"
                                            $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}" ${page} "${heading}"
                                            ${steps_and_ranks})
    set_tests_properties(examples.${name} PROPERTIES LABELS examples PROCESSORS 2 ENVIRONMENT "${test_environment}")
  endforeach()
  # X18, X19, X21: on files that Python makes.
  moonhalo_add_test(NAME examples.well COMMAND Python3::Interpreter "${PROJECT_SOURCE_DIR}/tests/examples/check_well.py"
                                      $<TARGET_FILE:moonhalo_cli>
                                      "${PROJECT_SOURCE_DIR}/.venv-tests/bin/python" "${PROJECT_SOURCE_DIR}")
  set_tests_properties(examples.well PROPERTIES LABELS examples SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT
                                                "${test_environment}")
  # Y07: a model of PyTorch, trained further on 3 ranks in Lua and in Python, and loaded back.
  if(NOT MOONHALO_SANITIZE)
    moonhalo_add_test(LONG NAME examples.pretrained COMMAND Python3::Interpreter
                      "${PROJECT_SOURCE_DIR}/tests/examples/check_pretrained.py" "${moonhalo_python}"
                      $<TARGET_FILE:moonhalo_cli> "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/python"
                      "missing=${moonhalo_no_python}")
    set_tests_properties(examples.pretrained PROPERTIES LABELS examples SKIP_RETURN_CODE 77 PROCESSORS 2 ENVIRONMENT
                                                        "${test_environment}")
  endif()
  # X14: dry runs of examples; `check_dry_runs.py PROGRAM SOURCE --all` runs all of them as three ranks.
  moonhalo_add_test(NAME examples.dry_runs COMMAND Python3::Interpreter
                    "${PROJECT_SOURCE_DIR}/tests/examples/check_dry_runs.py" $<TARGET_FILE:moonhalo_cli>
                    "${PROJECT_SOURCE_DIR}")
  moonhalo_add_test(NAME lua.dry_run_rank COMMAND moonhalo_cli run tests/scripting/support/dry_run_rank.lua
                            --backend fake --ranks 8 --fake-rank 5 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  # X14: tests of Lua as one of their ranks; `check_dry_runs.py PROGRAM SOURCE --all` runs all of them as three.
  moonhalo_add_test(NAME lua.dry_runs COMMAND Python3::Interpreter
                    "${PROJECT_SOURCE_DIR}/tests/scripting/check_dry_runs.py" $<TARGET_FILE:moonhalo_cli>
                    "${PROJECT_SOURCE_DIR}")
  set_tests_properties(examples.dry_runs lua.dry_run_rank lua.dry_runs PROPERTIES LABELS examples ENVIRONMENT
                       "${test_environment}")
  # X16: a rank that fails or is killed, and disks that are full.
  set(failing_error "error\\(\"the pressure is negative\"\\)")
  set(failing_killed "${text_killed}")
  set(failing_disk "the disk refused '.*x.safetensors'")
  set(failing_disk_json "ranks 0-2: [^\n]*: checkpoint.save: the disk refused '.*checkpoint.json': File too large")
  set(failing_disk_log "log: the disk refused '.*log.jsonl': File too large")
  set(failing_disk_h5 "fix   raise the limit on file sizes \\(ulimit -f\\)")
  set(failing_stdout "standard output was not written: No space left on device")
  set(failing_cases error:threads disk:threads disk_json:threads disk_log:threads disk_h5:threads stdout:threads)
  if(MPI_C_FOUND)
    list(APPEND failing_cases error:mpi killed:mpi)
  endif()
  foreach(case IN LISTS failing_cases)
    string(REGEX MATCH "^(.*):(.*)$" case "${case}")
    set(how ${CMAKE_MATCH_1})
    set(on ${CMAKE_MATCH_2})
    set(launcher "")
    if(on STREQUAL mpi)
      set(launcher "${MPIEXEC_EXECUTABLE}")
    endif()
    moonhalo_add_test(NAME examples.failing_${how}_${on}
             COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:moonhalo_cli>" "-DSOURCE=${PROJECT_SOURCE_DIR}"
                     -DHOW=${how} "-DTEXT=${failing_${how}}" "-DLAUNCHER=${launcher}" -DRANKS=3 -P
                     "${PROJECT_SOURCE_DIR}/tests/examples/failures.cmake")
    set_tests_properties(examples.failing_${how}_${on} PROPERTIES LABELS examples PROCESSORS 2 ENVIRONMENT
                                                                  "${mpi_environment}")
  endforeach()
  moonhalo_add_test(NAME examples.embed_threads COMMAND embed_heat 3)
  set_tests_properties(examples.embed_threads PROPERTIES LABELS examples PROCESSORS 2)
  if(MPI_C_FOUND)
    moonhalo_add_test(NAME examples.embed_mpi COMMAND ${MPIEXEC_EXECUTABLE} -n 2 $<TARGET_FILE:embed_heat>)
    # No more ranks than cores, which wait for each other 25,000 times: beside other work each yield of Open MPI costs a
    # slice of time (60 s instead of 8 beside two busy loops), where Moonhalo's own waits give way by themselves.
    set_tests_properties(examples.embed_mpi PROPERTIES LABELS examples PROCESSORS 2 ENVIRONMENT
                                                       "${mpi_environment};OMPI_MCA_mpi_yield_when_idle=0")
  endif()
endif()
