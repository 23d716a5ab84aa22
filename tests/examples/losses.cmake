# Runs an example with several numbers of ranks and compares the losses of every step with those of one rank.
#   PROGRAM moonhalo   SOURCE the repository   SCRIPT its path in there
#   SETTINGS key=value,..., where @OUTPUT@ is a folder of the test's own
#   RANKS list of numbers of thread ranks   STEPS, TOLERANCE   MPIEXEC empty: not under MPI
#   LAUNCHERS list of names that tests/launch/start_ranks.sh knows: 3 ranks of each over TCP
#   REFERENCE a setting with which the script uses plain tensors: compared with that first; empty: there is none
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/run_example.cmake")
string(REPLACE "@OUTPUT@" "${OUTPUT}" SETTINGS "${SETTINGS}")
foreach(list SETTINGS RANKS LAUNCHERS)
  string(REPLACE "," ";" ${list} "${${list}}")
endforeach()
as_options(settings steps=${STEPS} ${SETTINGS})

if(REFERENCE)
  as_options(options "${REFERENCE}" steps=${STEPS} ${SETTINGS})
  run_example(reference "${SCRIPT}" "${PROGRAM}")
endif()
foreach(ranks IN LISTS RANKS)
  set(options --ranks ${ranks} ${settings})
  run_example(threads_${ranks} "${SCRIPT}" "${PROGRAM}")
endforeach()
set(options ${settings})
if(MPIEXEC)
  foreach(ranks 2 3)
    run_example(mpi_${ranks} "${SCRIPT}" "${MPIEXEC}" -n ${ranks} "${PROGRAM}")
  endforeach()
endif()
foreach(launcher IN LISTS LAUNCHERS)
  run_example(${launcher} "${SCRIPT}" "${SOURCE}/tests/launch/start_ranks.sh" ${launcher} 3 "${PROGRAM}")
endforeach()
compare_losses(${STEPS} ${TOLERANCE})
