# Read before project(): Clang 19 compiles these sources, most of whose time is templates of LibTorch's headers, in less
# than half of GCC's time, and its precompiled header keeps what GCC instantiates again in every file. Where it is
# installed (`./dev` sees to that on Debian) it is the compiler, unless the user names another: CMAKE_CXX_COMPILER, CXX
# or a toolchain file. A build folder that exists keeps its compiler, and so does a project that this one is part of.
if(NOT CMAKE_CXX_COMPILER AND NOT CMAKE_TOOLCHAIN_FILE AND NOT DEFINED ENV{CXX})
  find_program(MOONHALO_CLANG clang++-19)
  mark_as_advanced(MOONHALO_CLANG)
  if(MOONHALO_CLANG)
    set(CMAKE_CXX_COMPILER "${MOONHALO_CLANG}" CACHE FILEPATH "C++ compiler")
  endif()
endif()
