# Runs SCRIPT on RANKS processes, whose ranks part ways: it must fail before its time limit (the one of a collective is
# ten minutes), print no number, and say each of the TEXTS (regular expressions, separated by |).
# In: MPIEXEC, PROGRAM, RANKS, SCRIPT, TEXTS
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND "${MPIEXEC}" -n "${RANKS}" "${PROGRAM}" run "${SCRIPT}" TIMEOUT 300 RESULT_VARIABLE status
                OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(status MATCHES "timeout")
  message(FATAL_ERROR "${SCRIPT} still ran after 300 s\n${out}${err}")
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
