// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/activation_backward.cuh"
#include "coterie/run/kernels/row_gradient_hopper.cuh"

/// Private to the room: the row gradient of the down-projection on Hopper, taken through the
/// activation.
///
/// The activation moves 10 bytes a result where the product moves none, and would leave the tensor
/// cores idle. So a warp leaves its rows of a tile, dL/d(hidden), rounded, in shared memory, and
/// takes them through the activation row by row while the tensor cores compute its next tile: reads
/// pre-activations, stores their gradients, the weighted hidden rows and each row's dot product,
/// that is, the gradient of its routing weight.
///
/// Rows are gathered by 16-byte copies and come later than weights, which the copy engine brings:
/// so there are four stages of rows, three of weights, filled one step later.
namespace coterie::kernels::cuda {

struct DownGradientArguments {
  RowSource grad_y;
  const std::int32_t* row_of;  // null: row r
  const std::int32_t* offsets;
  int num_experts;
  int depth;
  int columns;
  const float* row_weights;  // null: all 1
  RowTarget pre;             // [R, 2 columns], or [R, columns] without gate
  RowTarget grad_pre;        // out; may be pre
  RowTarget hidden;          // out [R, columns], times the row's weight; null: not wanted
  float* dots;               // out [blocks of 256 columns, dots_stride]; null: not wanted
  std::int64_t dots_stride;
  Activation activation;
  Watchdog watchdog;
};

struct DownGradientShape {
  static constexpr int kColumns = 256;  // of a tile
  static constexpr int kStages = 4;
  static constexpr int kWeightStages = 3;
  static constexpr int kWeightBytes = 4 * kGroupBytes;
  static constexpr int kWeightsOffset = kStages * kInputBytes;
  static constexpr int kStagingOffset = kWeightsOffset + kWeightStages * kWeightBytes;
  static constexpr int kWarpBytes = 16 * 512;  // of staging
  static constexpr int kBarrierOffset = kStagingOffset + 8 * kWarpBytes;
  static constexpr int kSharedBytes = kBarrierOffset + 2 * 8 * kStages;
  static_assert(kSharedBytes <= kMaxSharedBytes, "more shared memory than a block can have");

  /// Stage of the weights after `stage`.
  static __device__ int next(int stage) { return stage + 1 == kWeightStages ? 0 : stage + 1; }
};

/// Weights that are still to be asked for: those of the step before the one whose rows are.
struct PendingWeights {
  Tile tile;
  int k = -1;  // none
  std::uint32_t full = 0;
  int stage = 0;

  /// Asks for them; one thread.
  __device__ void load(const CUtensorMap& map, std::uint32_t shared, int rank) {
    if (k >= 0) {
      using Shape = DownGradientShape;
      barrier_expect(full, Shape::kWeightBytes);
      load_weight_columns(map, tile, k,
                          shared + Shape::kWeightsOffset + stage * Shape::kWeightBytes, full, rank);
      stage = Shape::next(stage);
    }
  }
};

__device__ inline void produce_down(const CUtensorMap& w_map, const DownGradientArguments& task,
                                    std::uint32_t shared, int rank) {
  using Shape = DownGradientShape;
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  const int first_row = thread / 8;  // this thread copies rows first_row + 16 i
  const int chunk = thread % 8;
  const std::uint32_t offset = swizzled(first_row, chunk);
  TileWalk<2> walk(task.offsets, task.num_experts,
                   (task.columns + Shape::kColumns - 1) / Shape::kColumns);
  Ring<Shape::kStages> ring;
  PendingWeights weights;
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / 2;
  for (int unit = static_cast<int>(blockIdx.x) / 2; walk.find(unit, rank, tile); unit += step) {
    const char* source[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = first_row + 16 * i;
      const std::int64_t r = std::int64_t{tile.row} + row;
      source[i] = row < tile.num_rows
                      ? task.grad_y.row(task.row_of != nullptr ? task.row_of[r] : r) + chunk * 16
                      : nullptr;
    }
    for (int k = 0; k < task.depth; k += kDepthStep) {
      const std::uint32_t stage = shared + ring.stage * kInputBytes;
      const std::uint32_t stage_full = full + 8 * ring.stage;
      // Free: the rows of four steps ago, and with them the weights of that step, whose place those
      // of the step before this one take.
      barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
      if (thread == 0) {
        weights.load(w_map, shared, rank);
        weights.tile = tile;
        weights.k = k;
        weights.full = stage_full;
      }
      const bool inside = k + chunk * 8 < task.depth;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool valid = inside && source[i] != nullptr;
        gather_16(stage + offset + i * 16 * 128, valid ? source[i] + k * 2 : task.grad_y.data[0],
                  valid);
      }
      arrive_when_copied(stage_full);
      ring.advance();
    }
  }
  if (thread == 0 && weights.k >= 0) {
    barrier_wait(empty + 8 * ring.stage, ring.phase ^ 1U, task.watchdog);
    weights.load(w_map, shared, rank);
  }
}

/// Two neighbouring elements on their way through the activation. `value` is dL/d(hidden) before
/// the row's weight.
template <bool kGated>
struct Neighbours {
  std::uint32_t gate;  // in: pre-activation; out: its gradient
  std::uint32_t up;
  std::uint32_t hidden;  // out: times the row's weight

  __device__ void pass_through(std::uint32_t value, float weight, Activation activation,
                               float& dot) {
    float v[2] = {low_half(value), high_half(value)};
    float g[2] = {low_half(gate), high_half(gate)};
    float u[2] = {low_half(up), high_half(up)};
    float h[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kGated) {
        const SwiGluGradient gradient = swiglu_backward(g[i], u[i]);
        h[i] = gradient.hidden;
        dot += v[i] * h[i];
        v[i] *= weight;
        g[i] = v[i] * gradient.by_gate;
        u[i] = v[i] * gradient.by_up;
      } else {
        const GeluGradient gradient = gelu_backward(g[i], activation);
        h[i] = gradient.hidden;
        dot += v[i] * h[i];
        g[i] = v[i] * weight * gradient.by_pre;
      }
      h[i] *= weight;
    }
    gate = pack(g[0], g[1]);
    up = pack(u[0], u[1]);
    hidden = pack(h[0], h[1]);
  }
};

/// Pre-activations of 8 columns of a row, and the row's weight.
struct PrePiece {
  uint4 gate;
  uint4 up;
  float weight;
};

/// A warp's 16 rows of a tile that wait for their activation. A piece of work is a row, of which
/// each lane has 8 columns; it is done in four parts.
template <bool kGated>
class WaitingRows {
 public:
  __device__ WaitingRows(const DownGradientArguments& task, std::uint32_t staging, int turn)
      : task_(task), staging_(staging), lane_(static_cast<int>(threadIdx.x) % 32), turn_(turn) {
    while (task.depth / kDepthStep / 32 > mask_) {
      mask_ = 2 * mask_ + 1;
    }
  }

  /// Takes the rounded sums of rows [row, row + num_rows), whose columns begin at block * 256, and
  /// will do `num_pieces` >= num_rows pieces of work: as many as the other warps of the warpgroup,
  /// which must issue the same products. Nothing may be waiting.
  __device__ void take(const float (&d)[128], std::int64_t row, int num_rows, int num_pieces,
                       int block) {
    const int matrix_row = (lane_ / 8 & 1) * 8 + lane_ % 8;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int i = 8 * j;
      store_matrices(staging_ + place(matrix_row, 2 * j + lane_ / 16), pack(d[i], d[i + 1]),
                     pack(d[i + 2], d[i + 3]), pack(d[i + 4], d[i + 5]), pack(d[i + 6], d[i + 7]));
    }
    __syncwarp();
    row_ = row;
    num_rows_ = num_rows;
    num_pieces_ = num_pieces;
    block_ = block;
    column_ = block * 256 + lane_ * 8;
    inside_ = column_ < task_.columns;
    done_ = 0;
    look_ahead(0);
  }

  /// Whether a row waits and stage `k` is one to work on it. The two warpgroups take turns.
  __device__ bool has_piece(int k) const {
    return done_ < num_pieces_ && ((k / kDepthStep + turn_) & mask_) == 0;
  }

  /// Two columns a part.
  __device__ void work(int part) {
    if (part == 0) {
      now_ = next_;
      look_ahead(done_ + 1);
      value_ = load_shared_16(staging_ + place(done_, lane_));
      dot_ = 0.0F;
    }
    const std::uint32_t value = word(value_, part);
    n_[part] = {word(now_.gate, part), word(now_.up, part), 0};
    n_[part].pass_through(value, now_.weight, task_.activation, dot_);
  }

  /// Stores what the four parts gave.
  __device__ void leave() {
    const std::int64_t row = row_ + done_;
    const bool mine = done_++ < num_rows_;
    if (inside_ && mine) {
      char* const to =
          task_.grad_pre.data + row * task_.grad_pre.stride_bytes + std::int64_t{column_} * 2;
      store_global_16(to, {n_[0].gate, n_[1].gate, n_[2].gate, n_[3].gate});
      if constexpr (kGated) {
        store_global_16(to + std::int64_t{task_.columns} * 2,
                        {n_[0].up, n_[1].up, n_[2].up, n_[3].up});
      }
      if (task_.hidden.data != nullptr) {
        store_global_16(
            task_.hidden.data + row * task_.hidden.stride_bytes + std::int64_t{column_} * 2,
            {n_[0].hidden, n_[1].hidden, n_[2].hidden, n_[3].hidden});
      }
    }
    if (task_.dots != nullptr) {
      float dot = inside_ ? dot_ : 0.0F;
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        dot += __shfl_xor_sync(~0U, dot, distance);
      }
      if (lane_ == 0 && mine) {
        task_.dots[block_ * task_.dots_stride + row] = dot;
      }
    }
  }

  /// Finishes what waits.
  __device__ void finish() {
    while (done_ < num_pieces_) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        work(part);
      }
      leave();
    }
  }

 private:
  /// Place of 16-byte piece `piece` of 32 in a row.
  static __device__ std::uint32_t place(int row, int piece) {
    return piece / 8 * 2048 + swizzled(row, piece % 8);
  }

  static __device__ std::uint32_t word(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }

  /// Loads the pre-activations of a row; of another one where there is none, to spare a branch.
  __device__ void look_ahead(int row) {
    const std::int64_t from_row = num_rows_ <= 0 ? 0 : row_ + (row < num_rows_ ? row : 0);
    const char* const from = task_.pre.data + from_row * task_.pre.stride_bytes +
                             (inside_ ? std::int64_t{column_} * 2 : 0);
    next_.gate = load_global_16(from);
    if constexpr (kGated) {
      next_.up = load_global_16(from + std::int64_t{task_.columns} * 2);
    }
    next_.weight = task_.row_weights != nullptr ? task_.row_weights[from_row] : 1.0F;
  }

  const DownGradientArguments& task_;
  std::uint32_t staging_;
  int lane_;
  int turn_;
  int mask_ = 0;  // stages a row, a power of two, less one
  std::int64_t row_ = 0;
  int num_rows_ = 0;
  int num_pieces_ = 0;
  int block_ = 0;
  int column_ = 0;
  bool inside_ = false;
  int done_ = 0;
  PrePiece next_{};
  PrePiece now_{};
  uint4 value_{};
  Neighbours<kGated> n_[4];
  float dot_ = 0.0F;
};

/// Issues the products of one step. Each keeps the tensor cores busy for as long as a part of a
/// piece of other work takes, and the next cannot be issued much earlier: so the two alternate.
template <bool kBusy, bool kGated>
__device__ inline void multiply_step(float (&d)[128], std::uint64_t a, std::uint64_t b, bool keep,
                                     WaitingRows<kGated>& waiting) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kDepthStep / 16; ++i) {
    multiply<0, 1>(d, a + 2 * i, b + 128 * i, keep || i > 0);
    if constexpr (kBusy) {
      waiting.work(i);
    }
  }
  wgmma_commit();
  if constexpr (kBusy) {
    waiting.leave();
  }
}

template <bool kGated>
__device__ inline void consume_down(const DownGradientArguments& task, std::uint32_t shared,
                                    int rank) {
  using Shape = DownGradientShape;
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
  const int group = warp / 4;
  const std::uint32_t full = shared + Shape::kBarrierOffset;
  const std::uint32_t empty = full + 8 * Shape::kStages;
  WaitingRows<kGated> waiting(task, shared + Shape::kStagingOffset + warp * Shape::kWarpBytes,
                              group);
  TileWalk<2> walk(task.offsets, task.num_experts,
                   (task.columns + Shape::kColumns - 1) / Shape::kColumns);
  Ring<Shape::kStages> ring;
  int weights = 0;  // stage
  Tile tile;
  const int step = static_cast<int>(gridDim.x) / 2;
  float d[128];
  for (int unit = static_cast<int>(blockIdx.x) / 2; walk.find(unit, rank, tile); unit += step) {
    if (group * 64 >= tile.num_rows) {  // nothing of this tile is ours: hand the stages on
      waiting.finish();
      for (int k = 0; k < task.depth; k += kDepthStep) {
        barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
        release_stage(empty + 8 * ring.stage);
        ring.advance();
        weights = Shape::next(weights);
      }
      continue;
    }
    int last_stage = -1;
    for (int k = 0; k < task.depth; k += kDepthStep) {
      barrier_wait(full + 8 * ring.stage, ring.phase, task.watchdog);
      fence_to_async();
      const std::uint64_t a = tile_descriptor(shared + ring.stage * kInputBytes + group * 64 * 128);
      const std::uint64_t b = columns_descriptor(
          shared + Shape::kWeightsOffset + weights * Shape::kWeightBytes, kGroupBytes);
      if (waiting.has_piece(k)) {
        multiply_step<true>(d, a, b, k > 0, waiting);
      } else {
        multiply_step<false>(d, a, b, k > 0, waiting);
      }
      if (last_stage >= 0) {
        wgmma_wait<1>();
        release_stage(empty + 8 * last_stage);
      }
      last_stage = ring.stage;
      ring.advance();
      weights = Shape::next(weights);
    }
    wgmma_wait<0>();
    release_stage(empty + 8 * last_stage);
    waiting.finish();
    waiting.take(d, std::int64_t{tile.row} + warp * 16,
                 tile.idle ? 0 : min(16, tile.num_rows - warp * 16),
                 tile.idle ? 0 : min(16, tile.num_rows - group * 64), tile.block);
  }
  waiting.finish();
}

template <bool kGated>
__global__ void __launch_bounds__(kProductThreads, 1)
    down_gradient_kernel(const __grid_constant__ CUtensorMap w_map,
                         const __grid_constant__ DownGradientArguments task) {
  using Shape = DownGradientShape;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    prefetch_map(&w_map);
    init_ring<Shape::kStages>(shared + Shape::kBarrierOffset, 129);
  }
  cluster_sync();
  begin_after_previous();
  if (threadIdx.x < 128) {
    lower_registers<56>();
    produce_down(w_map, task, shared, rank);
    __syncwarp();
  } else {
    raise_registers<224>();
    consume_down<kGated>(task, shared, rank);
  }
  cluster_sync();  // the other block may still signal to this one's barriers
}

}  // namespace coterie::kernels::cuda
