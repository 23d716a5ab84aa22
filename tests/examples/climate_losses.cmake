# Runs the climate example with several numbers of ranks and compares the losses of every step with those of one rank.
#   PROGRAM moonhalo   SOURCE the repository   OUTPUT a folder   STEPS, DTYPE, DROPOUT, TOLERANCE   MPIEXEC empty without MPI
file(REMOVE_RECURSE "${OUTPUT}")
file(MAKE_DIRECTORY "${OUTPUT}")

function(run_example log)
  execute_process(
    COMMAND ${ARGN} run "${SOURCE}/examples/climate/train.lua" ${rank_options} --quiet --log "${OUTPUT}/${log}.jsonl" --set
            steps=${STEPS} --set dtype=${DTYPE} --set batch=8 --set width=8 --set dropout=${DROPOUT} --set plot=false --set output=${OUTPUT}/${log}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${log} ended with ${status}:\n${text}")
  endif()
endfunction()

set(logs "")
foreach(ranks 1 2 3 4 8)
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
execute_process(COMMAND "${PROGRAM}" run "${SOURCE}/tests/examples/compare_losses.lua" -- ${STEPS} ${TOLERANCE} ${logs}
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the losses depend on the number of ranks")
endif()
