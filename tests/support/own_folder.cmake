# For tests that are scripts of CMake: sets OUTPUT to the folder that tests/support/in_folder.sh has made for this test.
cmake_minimum_required(VERSION 3.25)
set(OUTPUT "$ENV{TMPDIR}")
if(NOT IS_DIRECTORY "${OUTPUT}")
  message(FATAL_ERROR "this test has no folder of its own\n  have  TMPDIR=${OUTPUT}\n"
                      "  fix   run it by tests/support/in_folder.sh, as CTest does")
endif()
