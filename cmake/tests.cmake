# coterie_test(NAME SOURCES file... USES target... [LABELS label...] [TORCH] [PROCESSORS n])
#
# One test program a name. Labels: unit (default), distributed, cli, golden, slow, python.
find_package(GTest REQUIRED)
set(COTERIE_SHARED_DIR "${PROJECT_SOURCE_DIR}/../shared" CACHE PATH
    "Folder with real routing data; tests that need it skip where it is absent")

add_library(coterie_test_folders STATIC "${PROJECT_SOURCE_DIR}/tests/folders.cpp")
target_include_directories(coterie_test_folders PUBLIC "${PROJECT_SOURCE_DIR}")
target_compile_definitions(coterie_test_folders PRIVATE
  COTERIE_SHARED_DIR="${COTERIE_SHARED_DIR}" COTERIE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
  COTERIE_BINARY_DIR="${PROJECT_BINARY_DIR}")

function(coterie_test name)
  cmake_parse_arguments(TEST "TORCH" "PROCESSORS" "SOURCES;USES;LABELS" ${ARGN})
  foreach(used IN LISTS TEST_USES)
    if(NOT TARGET ${used})
      return()  # a room that this preset leaves out
    endif()
  endforeach()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_USES} coterie_test_folders GTest::gtest_main
                        coterie_flags)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  if(TEST_TORCH)
    coterie_uses_torch(${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" TIMEOUT 600)
  if(TEST_PROCESSORS)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${TEST_PROCESSORS})
  endif()
endfunction()

# coterie_python_test(NAME SCRIPT file [ENVIRONMENT NAME=value...] [LABELS label...])
#
# A test that is a Python program, run by the Python of ./dev setup if there is one. It exits with 77
# where it lacks a package: then the test counts as skipped.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(COTERIE_TEST_PYTHON "${Python3_EXECUTABLE}")
foreach(python "$ENV{HOME}/.cache/coterie/env/bin/python" "$ENV{XDG_CACHE_HOME}/coterie/env/bin/python"
        "${COTERIE_PYTHON}")
  if(IS_ABSOLUTE "${python}" AND EXISTS "${python}")
    set(COTERIE_TEST_PYTHON "${python}")
  endif()
endforeach()

function(coterie_python_test name)
  cmake_parse_arguments(TEST "" "SCRIPT;PROCESSORS" "ENVIRONMENT;LABELS" ${ARGN})
  get_filename_component(script "${TEST_SCRIPT}" ABSOLUTE)
  add_test(NAME ${name} COMMAND "${COTERIE_TEST_PYTHON}" "${script}")
  if(NOT TEST_LABELS)
    set(TEST_LABELS python)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${TEST_LABELS}" SKIP_RETURN_CODE 77 TIMEOUT 600
                       ENVIRONMENT "${TEST_ENVIRONMENT}")
  if(TEST_PROCESSORS)
    set_tests_properties(${name} PROPERTIES PROCESSORS ${TEST_PROCESSORS})
  endif()
endfunction()
