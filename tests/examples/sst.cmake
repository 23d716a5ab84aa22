# examples/sst: the losses of one rank on any number, also where a run stops on 3 ranks and goes on with 2; predictions
# that are better than the climatology (0.527 K), in a file that has the coordinates of the data.
#   PROGRAM moonhalo   SOURCE the repository
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/run_example.cmake")

# train(LOG RANKS SETTING...)
macro(train log ranks)
  as_options(options dtype=float64 width=4 epochs=2 plot=false "output=${OUTPUT}/${log}" ${ARGN})
  list(APPEND options --ranks ${ranks})
  run_example(${log} examples/sst/train.lua "${PROGRAM}")
endmacro()

train(one 1)
train(four 4)
train(resumed 3 stop=7)
train(resumed 2 resume=true)
if(NOT said MATCHES "climatology +0\\.527\n +network +(0\\.[0-9]+)\n" OR CMAKE_MATCH_1 GREATER 0.45)
  message(FATAL_ERROR "predictions are worse than they should be:\n${said}")
endif()
compare_losses(24 1e-10)
execute_process(COMMAND "${PROGRAM}" inspect "${OUTPUT}/resumed/prediction.nc" OUTPUT_VARIABLE text)
if(NOT text MATCHES "sst +float64 \\[29, 89, 180\\]")
  message(FATAL_ERROR "the predictions are not as they should be:\n${text}")
endif()
