# libtorch out of the PyPI package `torch`, as the target Coterie::libtorch.
#
# TorchConfig.cmake of a CUDA build of torch insists on an installed CUDA toolkit even for programs
# that use the CPU only; linking its libraries by name does not.
set(COTERIE_TORCH_DIR "" CACHE PATH "Folder of the Python package torch (default: asked of Python)")
set(COTERIE_PYTHON "" CACHE FILEPATH "Python that has torch (default: the environment of ./dev setup)")

if(NOT COTERIE_TORCH_DIR)
  set(candidates "${COTERIE_PYTHON}" "$ENV{VIRTUAL_ENV}/bin/python"
      "$ENV{HOME}/.cache/coterie/env/bin/python" python3)
  foreach(python IN LISTS candidates)
    if(NOT python OR (IS_ABSOLUTE "${python}" AND NOT EXISTS "${python}"))
      continue()
    endif()
    execute_process(
      COMMAND ${python} -c
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0])"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
    if(status EQUAL 0 AND EXISTS "${found}/lib/libtorch_cpu.so")
      set(COTERIE_TORCH_DIR "${found}" CACHE PATH "Folder of the Python package torch" FORCE)
      break()
    endif()
  endforeach()
endif()
if(NOT EXISTS "${COTERIE_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No libtorch found. Run ./dev setup, or give -DCOTERIE_PYTHON=... or "
                      "-DCOTERIE_TORCH_DIR=..., or build without it: cmake --preset plan")
endif()
file(STRINGS "${COTERIE_TORCH_DIR}/version.py" torch_version REGEX "^__version__")
message(STATUS "libtorch: ${COTERIE_TORCH_DIR} (${torch_version})")
if(NOT torch_version MATCHES "'2\\.11\\.")
  message(WARNING "Coterie is built and tested with torch 2.11; found ${torch_version}")
endif()

add_library(Coterie::libtorch INTERFACE IMPORTED GLOBAL)
target_include_directories(Coterie::libtorch SYSTEM INTERFACE
  "${COTERIE_TORCH_DIR}/include" "${COTERIE_TORCH_DIR}/include/torch/csrc/api/include")
target_link_libraries(Coterie::libtorch INTERFACE
  "${COTERIE_TORCH_DIR}/lib/libtorch_cpu.so" "${COTERIE_TORCH_DIR}/lib/libc10.so" Threads::Threads)
target_compile_definitions(Coterie::libtorch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED USE_C10D)
set(CMAKE_BUILD_RPATH "${COTERIE_TORCH_DIR}/lib")
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib;${COTERIE_TORCH_DIR}/lib")
