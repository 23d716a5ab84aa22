# For the tests of examples that compare losses over ranks: run_example and compare_losses.
#   PROGRAM moonhalo   SOURCE the repository
# Sets OUTPUT to an empty folder.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../support/own_folder.cmake")
set(logs "")

# run_example(LOG SCRIPT COMMAND...): COMMAND runs the repository's SCRIPT with the `options`; `logs` grows, `said` is
# what it printed
function(run_example log script)
  execute_process(
    COMMAND ${ARGN} run "${SOURCE}/${script}" --quiet --log "${OUTPUT}/${log}.jsonl" ${options}
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

# as_options(NAME SETTING...): NAME becomes the settings as options of the program
function(as_options name)
  set(options "")
  foreach(setting IN LISTS ARGN)
    list(APPEND options --set "${setting}")
  endforeach()
  set(${name} "${options}" PARENT_SCOPE)
endfunction()

# compare_losses(STEPS TOLERANCE): all logs must hold the same losses
function(compare_losses steps tolerance)
  execute_process(COMMAND "${PROGRAM}" run "${SOURCE}/tests/examples/compare_losses.lua" -- ${steps} ${tolerance}
                  ${logs} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "the losses depend on the number of ranks")
  endif()
endfunction()
