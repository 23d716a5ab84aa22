# Device code: nvcc of an installed CUDA toolkit, which should be of the version that LibTorch was built with.
#
# TORCH_CUDA_ARCH_LIST  (environment or cache) as for PyTorch, "8.0;9.0+PTX"; empty: 8.0, 9.0 and code for later ones
# defines moonhalo_add_cuda_objects(TARGET PATTERN...)

set(TORCH_CUDA_ARCH_LIST "$ENV{TORCH_CUDA_ARCH_LIST}" CACHE STRING "GPUs to compile for, as in 8.0;9.0+PTX")
set(arch_list "${TORCH_CUDA_ARCH_LIST}")
if(NOT arch_list)
  set(arch_list "8.0;9.0+PTX")
endif()
string(REPLACE " " ";" arch_list "${arch_list}")
set(CMAKE_CUDA_ARCHITECTURES "")
foreach(arch IN LISTS arch_list)
  if(NOT arch MATCHES "^([0-9]+)\\.([0-9]+[af]?)(\\+PTX)?$")
    message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST: '${arch}' is not an architecture\n"
                        "  have  '${arch_list}'\n"
                        "  fix   give numbers as in 8.0;9.0+PTX")
  endif()
  if(CMAKE_MATCH_1 LESS 8)
    message(FATAL_ERROR "TORCH_CUDA_ARCH_LIST: ${arch} is too old for bfloat16 on tensor cores\n"
                        "  have  '${arch_list}'\n"
                        "  fix   leave out what is below 8.0")
  endif()
  set(number "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
  if(CMAKE_MATCH_3)
    list(APPEND CMAKE_CUDA_ARCHITECTURES "${number}")
  else()
    list(APPEND CMAKE_CUDA_ARCHITECTURES "${number}-real")
  endif()
endforeach()

find_program(MOONHALO_NVCC nvcc HINTS "$ENV{CUDACXX}" PATHS "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda
             PATH_SUFFIXES bin)
if(NOT MOONHALO_NVCC)
  message(FATAL_ERROR "CUDA: no nvcc\n"
                      "  have  MOONHALO_CUDA=ON, CUDA_HOME '$ENV{CUDA_HOME}', nothing in /usr/local/cuda/bin\n"
                      "  fix   install the CUDA toolkit, or pass -DMOONHALO_NVCC=<path of nvcc>")
endif()
set(CMAKE_CUDA_COMPILER "${MOONHALO_NVCC}")
# The programs link LibTorch's own runtime.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
enable_language(CUDA)
# CMake 3.25 does not know yet that nvcc has C++20, the standard of all targets.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()

# Objects of the device code that matches the patterns. Host and device share constexpr functions.
function(moonhalo_add_cuda_objects target)
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/include")
  target_link_libraries(${target} PRIVATE moonhalo::torch moonhalo::cuda_headers)
  target_compile_options(${target} PRIVATE --expt-relaxed-constexpr)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
