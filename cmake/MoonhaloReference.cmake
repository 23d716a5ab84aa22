# The reference: entries in comments of the sources, gathered into one file for tests and tools, and into a C++ source
# for `moonhalo help` and the annotations for editors (docs/tools/README.md).
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  message(FATAL_ERROR "Python 3 is missing: it gathers the strings of `moonhalo help` from the sources\n"
                      "  fix   apt-get install python3, or pass -DPython3_EXECUTABLE=PATH")
endif()
file(GLOB_RECURSE reference_inputs CONFIGURE_DEPENDS scripting/*.cpp scripting/*.lua)
set(reference_json "${PROJECT_BINARY_DIR}/generated/reference.json")
set(reference_source "${PROJECT_BINARY_DIR}/generated/reference.cpp")
set(reference_tool "${PROJECT_SOURCE_DIR}/docs/tools/reference.py")
add_custom_command(
  OUTPUT "${reference_source}" "${reference_json}"
  COMMAND Python3::Interpreter -B "${reference_tool}" "${PROJECT_SOURCE_DIR}" --json "${reference_json}"
          --cpp "${reference_source}"
  DEPENDS ${reference_inputs} scripting/embed/moonhalo_c.h scripting/embed/moonhalo_mpi.h
          scripting/embed/moonhalo.f90 "${reference_tool}"
          docs/tools/reference_texts.py docs/tools/reference_c.py
  COMMENT "Gathering the reference"
  VERBATIM)
