// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>

#include "coterie/run/kernels/activation.hpp"
#include "coterie/run/kernels/mbarrier.cuh"
#include "coterie/run/kernels/row_source.cuh"
#include "coterie/run/kernels/tile_walk.cuh"

/// Private to the room: arguments and compile-time choices of the grouped products on Hopper.
namespace coterie::kernels::cuda {

constexpr int kDepthStep = 64;
constexpr int kInputBytes = kTileRows * kDepthStep * 2;
constexpr int kProductThreads = 384;

/// What the kernel is told.
struct ProductArguments {
  RowSource x;
  const std::int32_t* row_of;  // null: row r
  const std::int32_t* offsets;
  int num_experts;
  int depth;
  int columns;
  const __nv_bfloat16* bias;  // [E, columns] or null; ungated only
  Activation activation;      // ungated products that gather
  RowTarget y;
  RowTarget pre;    // what the activation is given: [gate | up], or the sums with bias
  bool float_sums;  // y is fp32
  bool early;       // weights may be loaded before the previous kernel is complete
  Watchdog watchdog;
};

/// Compile-time choices. Only up-projections gather, and apply an activation. A tile has 256 weight
/// rows, which a cluster of two shares, or 128, for experts with few rows: more tiles, so that they
/// spread evenly.
template <bool kGated_, bool kGather_, bool kWide_>
struct ProductShape {
  static constexpr bool kGated = kGated_;
  static constexpr bool kGather = kGather_;
  static constexpr bool kWide = kWide_;
  static constexpr int kCluster = kWide ? 2 : 1;
  static constexpr int kStages = kWide ? 4 : 6;
  static constexpr int kWeightRows = kWide ? 256 : 128;
  static constexpr int kHalfRows = kWeightRows / 2;  // what one load brings
  static constexpr int kHalfBytes = kHalfRows * kDepthStep * 2;
  static constexpr int kStageBytes = kInputBytes + 2 * kHalfBytes;
  static constexpr int kTileColumns = kGated ? kWeightRows / 2 : kWeightRows;
  static constexpr int kPassColumns = kWide ? 128 : kTileColumns;  // what the epilogue stages
  static constexpr int kSums = kWeightRows / 2;                    // of a thread
  static constexpr int kPitch = kPassColumns * 2 + 16;  // bytes; rows start in different banks
  static constexpr int kStagingOffset = kStages * kStageBytes;
  static constexpr int kBarrierOffset = kStagingOffset + kTileRows * kPitch;
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= 232448, "more shared memory than a block can have");
  static_assert(kGather || !kGated, "gated products gather");
};

/// The ring: which stage is next, and in which round.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1U;
    }
  }
};

}  // namespace coterie::kernels::cuda
