# Runs SCRIPT on three ranks, which end as its first lines say (X16). The program must end with STATUS and say TEXT (a
# regular expression) on stdout or stderr. No time limit of Moonhalo ends it, unless the script sets one: the others are
# longer than this test may take.
# In: LAUNCH (what comes before the program, as "mpirun -n 3"; may be empty), PROGRAM, OPTIONS, SCRIPT, ARGUMENTS,
# STATUS, TEXT
cmake_minimum_required(VERSION 3.25)
separate_arguments(launch UNIX_COMMAND "${LAUNCH}")
separate_arguments(options UNIX_COMMAND "${OPTIONS}")
separate_arguments(arguments UNIX_COMMAND "${ARGUMENTS}")
execute_process(COMMAND ${launch} "${PROGRAM}" run "${SCRIPT}" ${options} -- ${arguments} TIMEOUT 300
                RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(NOT status EQUAL "${STATUS}")
  message(FATAL_ERROR "status ${status}, not ${STATUS}\n${out}${err}")
endif()
if(NOT err MATCHES "all ranks work")
  message(FATAL_ERROR "the ranks never started:\n${out}${err}")
endif()
if(NOT "${out}${err}" MATCHES "${TEXT}")
  message(FATAL_ERROR "nothing says \"${TEXT}\":\n${out}${err}")
endif()
