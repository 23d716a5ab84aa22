# Compiler settings that every target of the project shares (a precompiled header may only be reused under equal
# flags), and the functions that make targets with them.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

# -fPIC for programs too: CMake's -fPIE would make the shared precompiled header unusable there. (nvcc knows none of
# these options.)
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fPIC> $<$<COMPILE_LANGUAGE:CXX>:-pthread>)
if(MOONHALO_UNITY)
  # Of files that are compiled together GCC takes each for a header, whose classes may hold no types of anonymous
  # namespaces.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
if(MOONHALO_SANITIZE)
  # GCC's warning is wrong about std::function under sanitizers (its own <regex> sets it off).
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MOONHALO_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${MOONHALO_SANITIZE})
endif()

find_program(MOONHALO_CCACHE ccache)
if(MOONHALO_CCACHE)
  # Without the cache of inodes ccache reads the precompiled header's 420 MB anew for every file, half a second each.
  set(ccache_settings CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_INODECACHE=true)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Clang preprocesses all that its precompiled header holds, which takes longer than compiling: keys come from the
    # compiler's own list of headers instead.
    list(APPEND ccache_settings CCACHE_DEPEND=true)
    if(NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
      add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
    endif()
  elseif(NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;${ccache_settings};${MOONHALO_CCACHE}")
endif()
find_program(MOONHALO_MOLD mold)
if(MOONHALO_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# moonhalo_add_precompiled_header(TARGET HEADER [LIBRARIES]): for targets with the flags of moonhalo_common.
function(moonhalo_add_precompiled_header target header)
  file(CONFIGURE OUTPUT generated/${target}.cpp CONTENT "// Compiles ${header}.\n")
  add_library(${target} OBJECT "${PROJECT_BINARY_DIR}/generated/${target}.cpp")
  target_link_libraries(${target} PRIVATE moonhalo_common ${ARGN})
  target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/${header}")
endfunction()

# moonhalo_use_common(TARGET [PRECOMPILED])
function(moonhalo_use_common target)
  target_link_libraries(${target} PRIVATE moonhalo_common)
  if(NOT ARGN)
    set(ARGN moonhalo_pch)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${ARGN})
endfunction()

# moonhalo_unite(TARGET [ACROSS]): compiles files of one folder together, some at a time in the order of their names, so
# names in anonymous namespaces are unique within a folder. ACROSS folders where each file has a namespace of its own.
# Files with options of their own stay alone.
set(MOONHALO_UNITED_FILES 10)
function(moonhalo_unite target)
  if(NOT MOONHALO_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "^[^$]*\\.cpp$")
  list(SORT sources)
  set(last_folder "")
  foreach(source IN LISTS sources)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    if(options)
      continue()
    endif()
    set(folder "${target}")
    if(NOT ARGN)
      get_filename_component(folder "${source}" DIRECTORY)
      cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    endif()
    if(NOT folder STREQUAL last_folder)
      set(last_folder "${folder}")
      set(count 0)
    endif()
    math(EXPR number "${count} / ${MOONHALO_UNITED_FILES}")
    math(EXPR count "${count} + 1")
    string(MAKE_C_IDENTIFIER "${folder}_${number}" group)
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

function(moonhalo_add_objects target)
  add_library(${target} OBJECT ${ARGN})
  moonhalo_use_common(${target})
  moonhalo_unite(${target})
endfunction()

function(moonhalo_add_program target)
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE moonhalo)
  moonhalo_use_common(${target})
endfunction()

# The malloc of programs that run ranks as threads: memory that one rank frees serves the others, and large blocks are
# not mapped anew each time. Sanitizers bring their own. (The library leaves the choice to the program that embeds it.)
if(NOT MOONHALO_SANITIZE)
  find_library(MOONHALO_TCMALLOC NAMES tcmalloc_minimal libtcmalloc_minimal.so.4)
  if(NOT MOONHALO_TCMALLOC)
    message(WARNING "tcmalloc: no libtcmalloc_minimal.so; thread ranks will need more memory and time with "
                    "the system's malloc\n"
                    "  fix   apt-get install libtcmalloc-minimal4, or -DMOONHALO_TCMALLOC=<path of "
                    "libtcmalloc_minimal.so>")
  endif()
endif()

function(moonhalo_use_tcmalloc target)
  if(MOONHALO_TCMALLOC)
    target_link_options(${target} PRIVATE "LINKER:--no-as-needed" "${MOONHALO_TCMALLOC}" "LINKER:--as-needed")
  endif()
endfunction()
