# The Python module (docs/python.md), for the Python that LibTorch's wheel is installed for:
# build/PRESET/python/moonhalo. Sets moonhalo_python to that Python, or moonhalo_no_python to what is missing.
get_filename_component(moonhalo_python "${MOONHALO_TORCH_DIR}/../../../../bin/python3" ABSOLUTE)
set(moonhalo_no_python "")
if(NOT EXISTS "${moonhalo_python}" OR NOT EXISTS "${MOONHALO_TORCH_DIR}/lib/libtorch_python.so")
  set(moonhalo_no_python "LibTorch is not a wheel in a Python environment: ${MOONHALO_TORCH_DIR}")
  return()
endif()
execute_process(COMMAND "${moonhalo_python}" -c
                "import sysconfig as s; print(s.get_path('include') + ';' + s.get_config_var('EXT_SUFFIX'))"
                OUTPUT_VARIABLE python_facts OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET python_facts 0 python_include)
list(GET python_facts 1 python_suffix)
if(NOT EXISTS "${python_include}/Python.h")
  set(moonhalo_no_python "no Python.h in ${python_include} (Debian: python3-dev)")
  return()
endif()
set(python_folder "${PROJECT_BINARY_DIR}/python/moonhalo")
file(MAKE_DIRECTORY "${python_folder}")
file(GLOB python_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/scripting/python/moonhalo/*")
list(FILTER python_files EXCLUDE REGEX "__pycache__")
foreach(file IN LISTS python_files)
  get_filename_component(name "${file}" NAME)
  file(CREATE_LINK "${file}" "${python_folder}/${name}" SYMBOLIC)
endforeach()
file(CONFIGURE OUTPUT "${python_folder}/_built_for.py" CONTENT "TORCH = \"@MOONHALO_TORCH_VERSION@\"\n" @ONLY)
file(GLOB python_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/scripting/python/*.cpp")
add_library(moonhalo_python MODULE ${python_sources})
moonhalo_unite(moonhalo_python)
target_include_directories(moonhalo_python SYSTEM PRIVATE "${python_include}")
target_link_libraries(moonhalo_python PRIVATE moonhalo PkgConfig::MOONHALO_LUA
                                              "${MOONHALO_TORCH_DIR}/lib/libtorch_python.so")
target_compile_definitions(moonhalo_python PRIVATE TORCH_API_INCLUDE_EXTENSION_H)
# Beside the library where a wheel has put both.
set_target_properties(
  moonhalo_python
  PROPERTIES PREFIX "" OUTPUT_NAME _moonhalo SUFFIX "${python_suffix}" LIBRARY_OUTPUT_DIRECTORY "${python_folder}"
             CXX_VISIBILITY_PRESET hidden BUILD_RPATH "$ORIGIN;$<TARGET_FILE_DIR:moonhalo>;${MOONHALO_TORCH_DIR}/lib")
