# Runs SCRIPT on RANKS processes, whose ranks part ways: it must fail soon (the time limit of a collective is ten minutes), print no
# number, and say each of the TEXTS (regular expressions, separated by |).
# In: MPIEXEC, PROGRAM, RANKS, SCRIPT, TEXTS
string(TIMESTAMP begin "%s")
execute_process(COMMAND "${MPIEXEC}" -n "${RANKS}" "${PROGRAM}" run "${SCRIPT}" TIMEOUT 30 RESULT_VARIABLE status
                OUTPUT_VARIABLE out ERROR_VARIABLE err)
string(TIMESTAMP end "%s")
math(EXPR seconds "${end} - ${begin}")
if(status MATCHES "timeout" OR seconds GREATER 10)
  message(FATAL_ERROR "${SCRIPT} took ${seconds} s (${status})\n${out}${err}")
endif()
if(status EQUAL 0)
  message(FATAL_ERROR "${SCRIPT} ended as if nothing had happened\n${out}${err}")
endif()
if(out MATCHES "number")
  message(FATAL_ERROR "${SCRIPT} printed a number\n${out}")
endif()
string(REPLACE "|" ";" texts "${TEXTS}")
foreach(text IN LISTS texts)
  if(NOT err MATCHES "${text}")
    message(FATAL_ERROR "stderr of ${SCRIPT} does not say \"${text}\":\n${err}")
  endif()
endforeach()
