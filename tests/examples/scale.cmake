# examples/train_at_scale: 2 x 2 x 2 ranks give the losses of one, 3 ranks go on with what 8 have saved, and policies train the
# same model.
#   PROGRAM moonhalo   SOURCE the repository   OUTPUT a folder
file(REMOVE_RECURSE "${OUTPUT}")
file(MAKE_DIRECTORY "${OUTPUT}")
set(logs "")

# run_example(LOG RANKS SETTING...): logs grow
function(run_example log ranks)
  set(options "")
  foreach(setting IN ITEMS dtype=float64 batch=8 dim=16 depth=1 "output=${OUTPUT}" ${ARGN})
    list(APPEND options --set "${setting}")
  endforeach()
  execute_process(
    COMMAND "${PROGRAM}" run "${SOURCE}/examples/train_at_scale/train.lua" --ranks ${ranks} --quiet --log
            "${OUTPUT}/${log}.jsonl" ${options}
    RESULT_VARIABLE status
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${log} ended with ${status}:\n${text}")
  endif()
  list(APPEND logs "${OUTPUT}/${log}.jsonl")
  list(REMOVE_DUPLICATES logs)
  set(logs "${logs}" PARENT_SCOPE)
endfunction()

run_example(one 1 steps=4)
run_example(tensor 4 steps=4 policy=tp)
run_example(units 4 steps=4 policy=tp unit=2)
run_example(autodist 3 steps=4 policy=autodist)
run_example(grid 8 steps=4)
run_example(resumed 8 steps=2)
run_example(resumed 3 steps=4 resume=true)
execute_process(COMMAND "${PROGRAM}" run "${SOURCE}/tests/examples/compare_losses.lua" -- 4 1e-10 ${logs}
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the losses depend on the ranks")
endif()
