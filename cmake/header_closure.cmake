# header_closure(VARIABLE FOLDER HEADER...): the headers, relative to FOLDER, with all of Moonhalo's that they include.
cmake_policy(SET CMP0057 NEW)  # IN_LIST, also where a script without a project includes this

function(header_closure variable folder)
  set(found ${ARGN})
  set(unread ${ARGN})
  while(unread)
    list(POP_FRONT unread header)
    file(STRINGS "${folder}/${header}" lines REGEX "^#include \"moonhalo/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" included "${line}")
      if(NOT included IN_LIST found)
        list(APPEND found "${included}")
        list(APPEND unread "${included}")
      endif()
    endforeach()
  endwhile()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# read_public_headers(NAMES ROWS SOURCE_FOLDER): what users include, and "NAME SOURCE" of those that have a source
# (cmake/public_headers.txt).
function(read_public_headers names rows source)
  file(STRINGS "${source}/cmake/public_headers.txt" lines REGEX "^moonhalo/")
  set(found "")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^[^ ]+" name "${line}")
    list(APPEND found "${name}")
  endforeach()
  list(FILTER lines INCLUDE REGEX " ")
  set(${names} "${found}" PARENT_SCOPE)
  set(${rows} "${lines}" PARENT_SCOPE)
endfunction()
