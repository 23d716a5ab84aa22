# examples/sst: the losses of one rank on any number, also where a run stops on 3 ranks and goes on with 2; predictions that are better
# than the climatology (0.527 K), in a file that has the coordinates of the data.
#   PROGRAM moonhalo   SOURCE the repository   OUTPUT a folder
file(REMOVE_RECURSE "${OUTPUT}")
file(MAKE_DIRECTORY "${OUTPUT}")
set(logs "")

# run_example(LOG RANKS SETTING...): logs grow, `said` is what it printed
function(run_example log ranks)
  set(options "")
  foreach(setting IN ITEMS dtype=float64 width=4 epochs=2 plot=false "output=${OUTPUT}/${log}" ${ARGN})
    list(APPEND options --set "${setting}")
  endforeach()
  execute_process(
    COMMAND "${PROGRAM}" run "${SOURCE}/examples/sst/train.lua" --ranks ${ranks} --quiet --log "${OUTPUT}/${log}.jsonl" ${options}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${log} ended with ${status}:\n${text}")
  endif()
  list(APPEND logs "${OUTPUT}/${log}.jsonl")
  list(REMOVE_DUPLICATES logs)
  set(logs "${logs}" PARENT_SCOPE)
  set(said "${text}" PARENT_SCOPE)
endfunction()

run_example(one 1)
run_example(four 4)
run_example(resumed 3 stop=7)
run_example(resumed 2 resume=true)
if(NOT said MATCHES "climatology +0\\.527\n +network +(0\\.[0-9]+)\n" OR CMAKE_MATCH_1 GREATER 0.45)
  message(FATAL_ERROR "predictions are worse than they should be:\n${said}")
endif()
execute_process(COMMAND "${PROGRAM}" run "${SOURCE}/tests/examples/compare_losses.lua" -- 24 1e-10 ${logs}
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the losses depend on the ranks")
endif()
execute_process(COMMAND "${PROGRAM}" inspect "${OUTPUT}/resumed/prediction.nc" OUTPUT_VARIABLE text)
if(NOT text MATCHES "sst +float64 \\[29, 89, 180\\]")
  message(FATAL_ERROR "the predictions are not as they should be:\n${text}")
endif()
