# Runs an example with several numbers of ranks and compares the losses of every step with those of one rank.
#   PROGRAM moonhalo   SOURCE the repository   SCRIPT its path in there   SETTINGS key=value,...   OUTPUT a folder
#   RANKS list of numbers of thread ranks   STEPS, TOLERANCE   MPIEXEC empty: not under MPI
#   LAUNCHERS list of names that tests/launch/start_ranks.sh knows: 3 ranks of each over TCP
#   REFERENCE a setting with which the script uses plain tensors: compared with that first; empty: there is none
file(REMOVE_RECURSE "${OUTPUT}")
file(MAKE_DIRECTORY "${OUTPUT}")

set(options "--set;steps=${STEPS}")
string(REPLACE "," ";" settings "${SETTINGS}")
foreach(setting IN LISTS settings)
  list(APPEND options --set "${setting}")
endforeach()
string(REPLACE "," ";" RANKS "${RANKS}")

function(run_example log)
  execute_process(
    COMMAND ${ARGN} run "${SOURCE}/${SCRIPT}" ${rank_options} --quiet --log "${OUTPUT}/${log}.jsonl" ${options}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${log} ended with ${status}:\n${text}")
  endif()
endfunction()

set(logs "")
if(REFERENCE)
  set(rank_options --set "${REFERENCE}")
  run_example(reference "${PROGRAM}")
  list(APPEND logs "${OUTPUT}/reference.jsonl")
endif()
foreach(ranks IN LISTS RANKS)
  set(rank_options --ranks ${ranks})
  run_example(threads_${ranks} "${PROGRAM}")
  list(APPEND logs "${OUTPUT}/threads_${ranks}.jsonl")
endforeach()
if(MPIEXEC)
  foreach(ranks 2 3)
    set(rank_options "")
    run_example(mpi_${ranks} "${MPIEXEC}" -n ${ranks} "${PROGRAM}")
    list(APPEND logs "${OUTPUT}/mpi_${ranks}.jsonl")
  endforeach()
endif()
string(REPLACE "," ";" LAUNCHERS "${LAUNCHERS}")
foreach(launcher IN LISTS LAUNCHERS)
  set(rank_options "")
  run_example(${launcher} "${SOURCE}/tests/launch/start_ranks.sh" ${launcher} 3 "${PROGRAM}")
  list(APPEND logs "${OUTPUT}/${launcher}.jsonl")
endforeach()
execute_process(COMMAND "${PROGRAM}" run "${SOURCE}/tests/examples/compare_losses.lua" -- ${STEPS} ${TOLERANCE} ${logs}
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the losses depend on the number of ranks")
endif()
