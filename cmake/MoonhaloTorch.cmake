# Finds LibTorch without its own CMake package and defines the imported target moonhalo::torch.
#
# MOONHALO_TORCH       a LibTorch folder or a site-packages/torch folder. Empty: that of Torch_DIR, else a fitting
#                      one of CMAKE_PREFIX_PATH, else MOONHALO_TORCH_DEFAULT, else the one in .venv beside the sources
# MOONHALO_TORCH_WANTED  the only version that will do; empty: 2.11 or later
# MOONHALO_CUDA        also import the CUDA libraries of LibTorch, and moonhalo::cuda_headers (NCCL is not linked: it is
#                      loaded when it is used)
# sets MOONHALO_TORCH_DIR, MOONHALO_TORCH_VERSION, MOONHALO_NVIDIA_DIR (empty where there is none), or
# MOONHALO_TORCH_ERROR and no target

set(MOONHALO_TORCH "" CACHE PATH "LibTorch folder, or the torch folder of a Python environment")
set(MOONHALO_TORCH_ERROR "")

# What is wrong with the LibTorch in `folder`; empty where it will do. Sets `version_out` to its version.
function(moonhalo_check_torch folder version_out wrong_out)
  set(${version_out} "" PARENT_SCOPE)
  set(version_text "")
  set(files lib/libtorch_cpu.so lib/libc10.so include/ATen/ATen.h)
  if(MOONHALO_CUDA)
    list(APPEND files lib/libtorch_cuda.so lib/libc10_cuda.so)
  endif()
  foreach(file IN LISTS files)
    if(NOT EXISTS "${folder}/${file}")
      set(${wrong_out} "has no ${file}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(EXISTS "${folder}/build-version")
    file(READ "${folder}/build-version" version_text)
  elseif(EXISTS "${folder}/version.py")
    file(STRINGS "${folder}/version.py" version_text REGEX "^__version__")
  endif()
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${version_text}")
  set(${version_out} "${version}" PARENT_SCOPE)
  if(NOT version)
    set(${wrong_out} "says no version in build-version or version.py" PARENT_SCOPE)
  elseif(MOONHALO_TORCH_WANTED AND NOT version VERSION_EQUAL MOONHALO_TORCH_WANTED)
    set(${wrong_out} "is version ${version}" PARENT_SCOPE)
  elseif(version VERSION_LESS 2.11)
    set(${wrong_out} "is version ${version}" PARENT_SCOPE)
  else()
    set(${wrong_out} "" PARENT_SCOPE)
  endif()
endfunction()

# Sets MOONHALO_TORCH_DIR and MOONHALO_TORCH_VERSION, or MOONHALO_TORCH_ERROR.
function(moonhalo_find_torch)
  # What is named for LibTorch alone has to fit. PyTorch's cmake_prefix_path is <torch>/share/cmake; a prefix may be for
  # others.
  set(named "${MOONHALO_TORCH}")
  if(NOT named AND Torch_DIR)
    get_filename_component(named "${Torch_DIR}/../../.." ABSOLUTE)
  endif()
  set(places "")
  if(named)
    list(APPEND places "${named}")
  else()
    file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" prefixes)
    foreach(prefix IN LISTS CMAKE_PREFIX_PATH prefixes)
      foreach(folder "${prefix}" "${prefix}/../..")
        get_filename_component(folder "${folder}" ABSOLUTE)
        if(EXISTS "${folder}/lib/libtorch_cpu.so")
          list(APPEND places "${folder}")
        endif()
      endforeach()
    endforeach()
    file(GLOB own "${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
    if(MOONHALO_TORCH_DEFAULT)
      list(APPEND places "${MOONHALO_TORCH_DEFAULT}")
    elseif(own)
      list(APPEND places ${own})
    endif()
  endif()
  set(have "")
  foreach(folder IN LISTS places)
    moonhalo_check_torch("${folder}" version wrong)
    if(NOT wrong)
      set(MOONHALO_TORCH_DIR "${folder}" PARENT_SCOPE)
      set(MOONHALO_TORCH_VERSION "${version}" PARENT_SCOPE)
      return()
    endif()
    string(APPEND have "  have  ${folder}, which ${wrong}\n")
  endforeach()
  if(NOT places)
    set(have "  have  no folder of it\n")
  endif()
  if(MOONHALO_TORCH_WANTED)
    string(CONCAT what "LibTorch ${MOONHALO_TORCH_WANTED} is needed, which moonhalo was built with: others have "
           "another binary interface")
    set(remedy "install it (pip install torch==${MOONHALO_TORCH_WANTED}) and pass one of these,")
  else()
    set(what "LibTorch 2.11 or later is needed")
    set(remedy "run `./dev build`, which installs it into .venv, or pass one of these,")
  endif()
  set(MOONHALO_TORCH_ERROR
        "${what}\n${have}  fix   ${remedy} where TORCH is a LibTorch folder or site-packages/torch:\n\
        -DMOONHALO_TORCH=TORCH, -DTorch_DIR=TORCH/share/cmake/Torch or -DCMAKE_PREFIX_PATH=TORCH" PARENT_SCOPE)
endfunction()

moonhalo_find_torch()
if(MOONHALO_TORCH_ERROR)
  return()
endif()

get_filename_component(MOONHALO_NVIDIA_DIR "${MOONHALO_TORCH_DIR}/../nvidia" ABSOLUTE)
if(NOT IS_DIRECTORY "${MOONHALO_NVIDIA_DIR}")
  set(MOONHALO_NVIDIA_DIR "")
endif()

if(NOT TARGET moonhalo::torch)
  add_library(moonhalo::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(
    moonhalo::torch
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
               "${MOONHALO_TORCH_DIR}/include;${MOONHALO_TORCH_DIR}/include/torch/csrc/api/include"
               INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
               "${MOONHALO_TORCH_DIR}/include;${MOONHALO_TORCH_DIR}/include/torch/csrc/api/include")
  # Clang 18 and later write the constraints of templates into their names, as GCC 14 does; LibTorch's are without.
  set(newer_clang "$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>")
  target_compile_options(moonhalo::torch INTERFACE "$<$<AND:${newer_clang}>:-fclang-abi-compat=17>")
  set(torch_libraries torch_cpu c10)
  if(MOONHALO_CUDA)
    list(APPEND torch_libraries torch_cuda c10_cuda)
  endif()
  if(MOONHALO_CUDA)
    # The wheel's CUDA headers lie in a sibling folder; a LibTorch folder goes with an installed CUDA toolkit.
    file(GLOB nvidia_includes "${MOONHALO_NVIDIA_DIR}/cu1*/include")
    file(GLOB nvidia_libraries "${MOONHALO_NVIDIA_DIR}/cu1*/lib/libcudart.so.*")
    if(NOT nvidia_libraries)
      find_package(CUDAToolkit REQUIRED)
      set(nvidia_includes ${CUDAToolkit_INCLUDE_DIRS})
      set(nvidia_libraries CUDA::cudart)
    endif()
    target_link_libraries(moonhalo::torch INTERFACE ${nvidia_libraries})
    # For the few sources that speak to CUDA themselves.
    add_library(moonhalo::cuda_headers INTERFACE IMPORTED GLOBAL)
    target_include_directories(moonhalo::cuda_headers SYSTEM INTERFACE ${nvidia_includes})
    # Symbols of ours may all come from torch_cpu: without this the linker may drop torch_cuda and its registrations.
    target_link_options(moonhalo::torch INTERFACE LINKER:--no-as-needed)
  endif()
  foreach(library IN LISTS torch_libraries)
    set(file "${MOONHALO_TORCH_DIR}/lib/lib${library}.so")
    add_library(moonhalo::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(moonhalo::${library} PROPERTIES IMPORTED_LOCATION "${file}")
    target_link_libraries(moonhalo::torch INTERFACE moonhalo::${library})
  endforeach()
endif()
