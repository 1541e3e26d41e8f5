# The room table: one line a room. It makes the targets, it is what tools/check_layers.py holds the
# real includes against, and ARCHITECTURE.md's table is generated from it.
#
#   coterie_room(PATH [USES room...] [OUTSIDE library...] [PURPOSE "text"])
#
# USES: rooms whose door this room may include (base is open to all). OUTSIDE: what else it may use:
# torch, c10d, mpi, cuda, pcre2, utf8proc. A room's folder holds a CMakeLists.txt with its sources.

set(COTERIE_ROOMS "" CACHE INTERNAL "rooms in table order")

function(coterie_room path)
  cmake_parse_arguments(ROOM "" "PURPOSE" "USES;OUTSIDE" ${ARGN})
  set(COTERIE_ROOMS ${COTERIE_ROOMS} ${path} CACHE INTERNAL "rooms in table order")
  string(REPLACE "/" "_" name ${path})
  if(NOT EXISTS "${PROJECT_SOURCE_DIR}/coterie/${path}/CMakeLists.txt")
    return()
  endif()
  if("torch" IN_LIST ROOM_OUTSIDE AND NOT COTERIE_TORCH)
    return()
  endif()
  add_library(coterie_${name} STATIC)
  set_target_properties(coterie_${name} PROPERTIES EXPORT_NAME ${name})
  add_library(Coterie::${name} ALIAS coterie_${name})
  target_compile_features(coterie_${name} PUBLIC cxx_std_20)
  target_include_directories(coterie_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(coterie_${name} PRIVATE $<BUILD_INTERFACE:coterie_flags>)
  if(NOT path STREQUAL "base")
    target_link_libraries(coterie_${name} PUBLIC coterie_base)
  endif()
  foreach(used IN LISTS ROOM_USES)
    string(REPLACE "/" "_" used_name ${used})
    if(TARGET coterie_${used_name})
      target_link_libraries(coterie_${name} PUBLIC coterie_${used_name})
    endif()
  endforeach()
  if("torch" IN_LIST ROOM_OUTSIDE)
    coterie_uses_torch(coterie_${name})
  endif()
  set_property(GLOBAL APPEND PROPERTY COTERIE_ROOM_TARGETS coterie_${name})
  add_subdirectory("${PROJECT_SOURCE_DIR}/coterie/${path}" "${PROJECT_BINARY_DIR}/coterie/${path}")
endfunction()

# coterie_room_sources(PATH file...): the sources of a room, listed by hand.
function(coterie_room_sources path)
  string(REPLACE "/" "_" name ${path})
  target_sources(coterie_${name} PRIVATE ${ARGN})
endfunction()

# A target that includes libtorch: shares one precompiled header with the others.
function(coterie_uses_torch target)
  if(NOT TARGET coterie_torch_pch)
    add_library(coterie_torch_pch OBJECT "${PROJECT_SOURCE_DIR}/cmake/torch_pch.cpp")
    target_link_libraries(coterie_torch_pch PRIVATE Coterie::libtorch coterie_flags)
    target_precompile_headers(coterie_torch_pch PRIVATE <ATen/ATen.h>)
  endif()
  target_link_libraries(${target} PUBLIC $<BUILD_INTERFACE:Coterie::libtorch>)
  if(NOT COTERIE_SANITIZER)
    target_precompile_headers(${target} REUSE_FROM coterie_torch_pch)
  endif()
endfunction()

coterie_room(base PURPOSE "errors, ids, matrices, JSON, files, random numbers, progress")

coterie_room(plan/routing PURPOSE "routing traces, expert sets, replicas per token and its bounds")
coterie_room(plan/cost USES plan/routing PURPOSE "measured cost models of links and products")
coterie_room(plan/placement USES plan/routing plan/cost
  PURPOSE "which device holds which expert: algorithms, objective, verification, files")
coterie_room(plan/pruning USES plan/routing plan/placement
  PURPOSE "collaboration pruning: fewer devices a token")
coterie_room(plan/schedule USES plan/cost plan/routing
  PURPOSE "task graphs, schedules, planner, simulator, timelines")
coterie_room(report USES plan/routing plan/placement plan/cost plan/pruning plan/schedule
  PURPOSE "tables, charts, the HTML page")

coterie_room(run/kernels OUTSIDE cuda
  PURPOSE "top-k gate, grouped expert products, gather, scatter, merge")
coterie_room(run/comm OUTSIDE c10d mpi nccl
  PURPOSE "collectives behind one face: Open MPI and NCCL through c10d, the in-process fake")
coterie_room(run/parallel USES run/comm PURPOSE "layout of data, model, expert parallel groups")
coterie_room(run/device USES run/kernels OUTSIDE torch
  PURPOSE "the GPU through libtorch: loading, streams, memory, tensors as views")
coterie_room(run/gates USES run/kernels run/device run/parallel plan/pruning OUTSIDE torch
  PURPOSE "gates, orders, balance losses")
coterie_room(run/exchange USES run/kernels run/comm run/parallel plan/placement plan/pruning
  PURPOSE "re-index lists, dispatch and combine, one row per token and device")
coterie_room(run/gradients USES run/comm run/parallel plan/schedule
  PURPOSE "gradient buckets and their overlap")
coterie_room(run/profiling USES run/comm run/kernels run/exchange plan/cost plan/schedule
  PURPOSE "measured links and products, recorded timelines")
coterie_room(run/layer
  USES run/exchange run/kernels run/comm run/parallel run/profiling plan/routing plan/cost
       plan/placement plan/pruning plan/schedule
  PURPOSE "the MoE layer without torch: forward, backward, chunks")
coterie_room(run/migration USES run/layer run/comm plan/placement
  PURPOSE "experts moved between steps")
coterie_room(run/nn
  USES run/layer run/exchange run/gates run/kernels run/device run/comm run/parallel plan/placement
       plan/routing plan/pruning plan/schedule
  OUTSIDE torch
  PURPOSE "libtorch modules: the trainable MoE layer, its autograd, hooks and recompute")
coterie_room(models
  USES run/layer run/nn run/gates run/parallel run/kernels run/device plan/routing plan/placement
       plan/pruning
  OUTSIDE torch pcre2 utf8proc
  PURPOSE "decoder, checkpoints, tokenizer; one small file a family")
coterie_room(training
  USES models run/nn run/layer run/gates run/parallel run/comm run/gradients run/profiling run/kernels
       run/device plan/routing plan/placement plan/pruning plan/cost plan/schedule
  OUTSIDE torch
  PURPOSE "trainer, optimizer, data order, checkpoints that reshard, recipes")
coterie_room(evaluation
  USES models plan/routing plan/placement plan/pruning
  OUTSIDE torch
  PURPOSE "bits per byte, tasks in JSON lines, similarity of experts, paired intervals")
