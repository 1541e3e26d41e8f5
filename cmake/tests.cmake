# coterie_test(NAME SOURCES file... USES target... [LABELS label...] [TORCH] [PROCESSORS n])
#
# One test program a name. Labels: unit (default), distributed, cli, golden, slow, python.
find_package(GTest REQUIRED)
set(COTERIE_SHARED_DIR "${PROJECT_SOURCE_DIR}/../shared" CACHE PATH
    "Folder with real routing data; tests that need it skip where it is absent")

function(coterie_test name)
  cmake_parse_arguments(TEST "TORCH" "PROCESSORS" "SOURCES;USES;LABELS" ${ARGN})
  foreach(used IN LISTS TEST_USES)
    if(NOT TARGET ${used})
      return()  # a room that this preset leaves out
    endif()
  endforeach()
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_USES} GTest::gtest_main coterie_flags)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${name} PRIVATE
    COTERIE_SHARED_DIR="${COTERIE_SHARED_DIR}" COTERIE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    COTERIE_BINARY_DIR="${PROJECT_BINARY_DIR}")
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
