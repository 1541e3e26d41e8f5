# One language level and one set of warnings for our own code. Nothing here reaches a consumer.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()

find_program(COTERIE_CCACHE ccache)
if(COTERIE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Clones in different folders share results, precompiled headers included.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${COTERIE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Warnings are errors with g++ only: other compilers warn of other things.
# -Wno-restrict: g++ 12 warns falsely in std::string (GCC bug 105651).
add_library(coterie_flags INTERFACE)
target_compile_options(coterie_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast
    $<$<CXX_COMPILER_ID:GNU>:-Werror -Wno-restrict> -fno-math-errno -ffp-contract=off>)
target_compile_definitions(coterie_flags INTERFACE $<$<BOOL:${COTERIE_AUDITS}>:COTERIE_AUDITS>)
if(COTERIE_SANITIZER)
  # -O1: at -O2 an instrumented JSON parser takes minutes to compile.
  add_compile_options(-fsanitize=${COTERIE_SANITIZER} -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=${COTERIE_SANITIZER})
endif()
