# examples/train_at_scale: 2 x 2 x 2 ranks give the losses of one, 3 ranks go on with what 8 have saved, and policies
# train the same model.
#   PROGRAM moonhalo   SOURCE the repository
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/run_example.cmake")

# train(LOG RANKS SETTING...)
macro(train log ranks)
  as_options(options dtype=float64 batch=8 dim=16 depth=1 "output=${OUTPUT}" ${ARGN})
  list(APPEND options --ranks ${ranks})
  run_example(${log} examples/train_at_scale/train.lua "${PROGRAM}")
endmacro()

train(one 1 steps=4)
train(tensor 4 steps=4 policy=tp)
train(units 4 steps=4 policy=tp unit=2)
train(autodist 3 steps=4 policy=autodist)
train(grid 8 steps=4)
train(resumed 8 steps=2)
train(resumed 3 steps=4 resume=true)
compare_losses(4 1e-10)
