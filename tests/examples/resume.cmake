# A script that saves on 4 ranks (2 x 2), and on 3, continues on 1, 2, 3 and 4; it compares with one rank by itself.
#   PROGRAM moonhalo   SCRIPT has the settings folder and resume   MPIEXEC empty: not under MPI
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/../support/own_folder.cmake")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${text}")
  endif()
endfunction()

foreach(saved 4 3)
  set(folder "${OUTPUT}/from_${saved}")
  file(MAKE_DIRECTORY "${folder}")
  set(settings --set "folder=${folder}")
  run("${PROGRAM}" run "${SCRIPT}" --ranks ${saved} ${settings})
  foreach(ranks 1 2 3 4)
    run("${PROGRAM}" run "${SCRIPT}" --ranks ${ranks} ${settings} --set resume=true)
  endforeach()
  if(MPIEXEC)
    run("${MPIEXEC}" -n 2 "${PROGRAM}" run "${SCRIPT}" ${settings} --set resume=true)
  endif()
endforeach()
