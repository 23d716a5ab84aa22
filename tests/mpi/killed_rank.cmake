# X16: starts PROGRAM on RANKS ranks, one of which ends as HOW says; all must be gone soon, with a status that tells.
# In: MPIEXEC, PROGRAM, RANKS, HOW (killed, abort, ...: test_communicator_mpi.cpp), and optionally TEXT that must be on
# stderr and STATUS.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND "${MPIEXEC}" -n "${RANKS}" "${PROGRAM}" "${HOW}" TIMEOUT 300 RESULT_VARIABLE status
                OUTPUT_VARIABLE out ERROR_VARIABLE err)
if(status MATCHES "timeout")
  message(FATAL_ERROR "mpirun still ran after 300 s")
endif()
if(status EQUAL 0)
  message(FATAL_ERROR "mpirun ended as if nothing had happened\n${out}${err}")
endif()
if(DEFINED STATUS AND NOT status EQUAL "${STATUS}")
  message(FATAL_ERROR "mpirun ended with ${status}, not ${STATUS}\n${out}${err}")
endif()
if(NOT err MATCHES "all ranks work")
  message(FATAL_ERROR "the ranks never started:\n${out}${err}")
endif()
if(DEFINED TEXT AND NOT err MATCHES "${TEXT}")
  message(FATAL_ERROR "stderr does not say \"${TEXT}\":\n${err}")
endif()
