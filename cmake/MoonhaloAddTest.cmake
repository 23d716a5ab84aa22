# The one way in which CTest's tests are made (tests/style/check_tests.py sees to it): each has a TMPDIR of its own, and
# a limit.
# Read by MoonhaloTests.cmake, cmake/gtest_suites.cmake and cmake/device_suites.cmake make theirs alike.

# Seconds. They end what hangs, and are ten times what the longest test of a kind takes alone: a machine may be busy.
set(hang_limit 600)
set(long_hang_limit 2400)  # of tests that take more than a minute
if(MOONHALO_SANITIZE)
  set(hang_limit 1800)
  set(long_hang_limit 7200)
endif()
set(in_folder "${PROJECT_SOURCE_DIR}/tests/support/in_folder.sh")

# moonhalo_add_test([LONG] NAME ... COMMAND ...): as add_test, with a folder and a limit
function(moonhalo_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "LONG;COMMAND_EXPAND_LISTS" "NAME;WORKING_DIRECTORY" "COMMAND")
  set(options "")
  if(arg_COMMAND_EXPAND_LISTS)
    list(APPEND options COMMAND_EXPAND_LISTS)
  endif()
  if(arg_WORKING_DIRECTORY)
    list(APPEND options WORKING_DIRECTORY "${arg_WORKING_DIRECTORY}")
  endif()
  list(GET arg_COMMAND 0 program)
  if(TARGET ${program})
    # By its text, since functions of lists would take an argument that has a semicolon apart.
    string(REGEX REPLACE "^[^;]+" "$<TARGET_FILE:${program}>" arg_COMMAND "${arg_COMMAND}")
  endif()
  set(limit ${hang_limit})
  if(arg_LONG)
    set(limit ${long_hang_limit})
  endif()
  add_test(NAME ${arg_NAME} COMMAND "${in_folder}" ${arg_COMMAND} ${options})
  set_tests_properties(${arg_NAME} PROPERTIES TIMEOUT ${limit})
endfunction()
