# examples/sst: the losses of one rank on any number, also where a run of 3 ranks is resumed on 2; predictions
# that are better than the climatology (0.527 K), in a file that has the coordinates of the data.
#   PROGRAM moonhalo   SOURCE the repository
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/run_example.cmake")

# train(LOG RANKS SETTING...)
macro(train log ranks)
  as_options(options dtype=float64 width=4 plot=false)
  list(APPEND options --ranks ${ranks} --run "${OUTPUT}/${log}/sst" ${ARGN})
  run_example(${log} examples/sst/train.lua "${PROGRAM}")
endmacro()

train(one 1 --set epochs=2)
train(four 4 --set epochs=2)
train(resumed 3 --set epochs=1)
train(resumed 2 --resume --set epochs=2)
if(NOT said MATCHES "climatology +0\\.527\n +network +(0\\.[0-9]+)\n" OR CMAKE_MATCH_1 GREATER 0.45)
  message(FATAL_ERROR "predictions are worse than they should be:\n${said}")
endif()
compare_losses(24 1e-10)
file(GLOB predictions "${OUTPUT}/resumed/*_sst_*/prediction.nc")
execute_process(COMMAND "${PROGRAM}" inspect ${predictions} OUTPUT_VARIABLE text)
if(NOT text MATCHES "sst +float64 \\[29, 89, 180\\]")
  message(FATAL_ERROR "the predictions are not as they should be:\n${text}")
endif()
