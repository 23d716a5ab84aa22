# Runs SCRIPT on three ranks, which end as its first lines say (X16). The program must end with STATUS within SECONDS and say TEXT (a regular
# expression) on stdout or stderr.
# In: LAUNCH (what comes before the program, as "mpirun -n 3"; may be empty), PROGRAM, OPTIONS, SCRIPT, ARGUMENTS, STATUS, SECONDS, TEXT
separate_arguments(launch UNIX_COMMAND "${LAUNCH}")
separate_arguments(options UNIX_COMMAND "${OPTIONS}")
separate_arguments(arguments UNIX_COMMAND "${ARGUMENTS}")
string(TIMESTAMP begin "%s")
execute_process(COMMAND ${launch} "${PROGRAM}" run "${SCRIPT}" ${options} -- ${arguments} TIMEOUT 60 RESULT_VARIABLE status
                OUTPUT_VARIABLE out ERROR_VARIABLE err)
string(TIMESTAMP end "%s")
math(EXPR seconds "${end} - ${begin}")
if(NOT status EQUAL "${STATUS}" OR seconds GREATER "${SECONDS}")
  message(FATAL_ERROR "status ${status} after ${seconds} s, not ${STATUS} within ${SECONDS} s\n${out}${err}")
endif()
if(NOT err MATCHES "all ranks work")
  message(FATAL_ERROR "the ranks never started:\n${out}${err}")
endif()
if(NOT "${out}${err}" MATCHES "${TEXT}")
  message(FATAL_ERROR "nothing says \"${TEXT}\":\n${out}${err}")
endif()
