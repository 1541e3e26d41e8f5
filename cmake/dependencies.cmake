# What we take from others. Debian and Ubuntu package names: tools/packages.txt.
include(CMakeFindDependencyMacro)
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)

if(COTERIE_TORCH)
  include(cmake/libtorch.cmake)
  find_package(PkgConfig REQUIRED)
  # The C library alone: the C++ one that FindMPI adds is obsolete and not there everywhere.
  pkg_check_modules(OPENMPI REQUIRED IMPORTED_TARGET ompi-c)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
endif()

if(COTERIE_CLI)
  find_package(CLI11 2.1 REQUIRED)
endif()

set(COTERIE_HAS_CUDA OFF)
if(NOT COTERIE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # 90a: the Hopper-only instructions; the others for the generic kernels.
    set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "GPU targets")
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      # CMake 3.25 does not know that nvcc 13 has C++20.
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    string(APPEND CMAKE_CUDA_FLAGS " -Xcompiler=-Wall,-Wextra -Werror=all-warnings")
    set(COTERIE_HAS_CUDA ON)
  elseif(COTERIE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "COTERIE_CUDA=ON, but no CUDA compiler (nvcc) was found")
  endif()
endif()
message(STATUS "Coterie: torch ${COTERIE_TORCH}, CUDA kernels ${COTERIE_HAS_CUDA}")
