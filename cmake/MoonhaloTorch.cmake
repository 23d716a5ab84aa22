# Finds LibTorch without its own CMake package and defines the imported target moonhalo::torch.
#
# MOONHALO_TORCH       a LibTorch folder or a site-packages/torch folder; empty: the one in .venv beside the sources
# MOONHALO_CUDA        also import the CUDA libraries of LibTorch, and moonhalo::cuda_headers (NCCL is loaded when it is used, not linked)
# sets MOONHALO_TORCH_DIR, MOONHALO_TORCH_VERSION, MOONHALO_NVIDIA_DIR (empty where there is none)

set(MOONHALO_TORCH "" CACHE PATH "LibTorch folder, or the torch folder of a Python environment")

set(MOONHALO_TORCH_DIR "${MOONHALO_TORCH}")
if(NOT MOONHALO_TORCH_DIR)
  set(MOONHALO_TORCH_DIR "${MOONHALO_TORCH_DEFAULT}")
endif()
if(NOT MOONHALO_TORCH_DIR)
  file(GLOB candidates "${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  if(candidates)
    list(GET candidates 0 MOONHALO_TORCH_DIR)
  endif()
endif()
set(torch_remedy "  fix   run `./dev build`, which installs LibTorch into .venv, or pass\n")
string(APPEND torch_remedy
       "        -DMOONHALO_TORCH=<a LibTorch folder, or site-packages/torch of a Python environment>")
if(NOT EXISTS "${MOONHALO_TORCH_DIR}/lib/libtorch_cpu.so" OR
   NOT EXISTS "${MOONHALO_TORCH_DIR}/include/ATen/ATen.h")
  message(FATAL_ERROR "LibTorch: no lib/libtorch_cpu.so and include/ATen/ATen.h in the folder\n"
                      "  have  MOONHALO_TORCH = '${MOONHALO_TORCH_DIR}'\n${torch_remedy}")
endif()

if(EXISTS "${MOONHALO_TORCH_DIR}/build-version")
  file(READ "${MOONHALO_TORCH_DIR}/build-version" version_text)
elseif(EXISTS "${MOONHALO_TORCH_DIR}/version.py")
  file(STRINGS "${MOONHALO_TORCH_DIR}/version.py" version_text REGEX "^__version__")
else()
  set(version_text "")
endif()
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" MOONHALO_TORCH_VERSION "${version_text}")
if(NOT MOONHALO_TORCH_VERSION OR MOONHALO_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch: version 2.11 or later is needed\n"
                      "  have  '${MOONHALO_TORCH_VERSION}' in ${MOONHALO_TORCH_DIR}\n${torch_remedy}")
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
  target_compile_options(
    moonhalo::torch
    INTERFACE "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>")
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
    if(NOT EXISTS "${file}")
      message(FATAL_ERROR "LibTorch: lib${library}.so is missing\n"
                          "  have  ${MOONHALO_TORCH_DIR}/lib\n${torch_remedy}")
    endif()
    add_library(moonhalo::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(moonhalo::${library} PROPERTIES IMPORTED_LOCATION "${file}")
    target_link_libraries(moonhalo::torch INTERFACE moonhalo::${library})
  endforeach()
endif()
