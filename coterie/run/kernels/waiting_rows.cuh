// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/activation_backward.cuh"
#include "coterie/run/kernels/backward_hopper.cuh"

/// Private to the room: sums of the down-projection's row gradient that wait for the activation.
///
/// The activation moves 10 bytes a result where the product moves none, and would leave the tensor
/// cores idle. So a warp leaves its rows of a tile, dL/d(hidden), rounded, in shared memory, and
/// takes them through the activation piece by piece while the tensor cores compute its next tile:
/// reads pre-activations, stores their gradients, the weighted hidden rows and each row's dot
/// product, that is, the gradient of its routing weight.
namespace coterie::kernels::cuda {

struct DownGradientArguments {
  RowSource grad_y;
  const std::int32_t* row_of;  // null: row r
  const std::int32_t* offsets;
  int num_experts;
  int depth;
  int columns;
  int first_block;  // of 256 columns
  int num_blocks;
  bool beside;  // the previous kernel is the same task's: only the end must wait for it
  const float* row_weights;  // null: all 1
  RowTarget pre;             // [R, 2 columns], or [R, columns] without gate
  RowTarget grad_pre;        // out; may be pre
  RowTarget hidden;          // out [R, columns], times the row's weight; null: not wanted
  float* dots;               // out [blocks of 256 columns, dots_stride]; null: not wanted
  std::int64_t dots_stride;
  Activation activation;
  Watchdog watchdog;
};

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

/// A warp's 16 rows of a tile that wait for their activation. A piece of work is a row of 256
/// columns, of which each lane has 8, or two rows of 128 (narrow); it is done in four parts.
template <bool kGated, bool kNarrow>
class WaitingRows {
 public:
  __device__ WaitingRows(const DownGradientArguments& task, std::uint32_t staging, int turn)
      : task_(task), staging_(staging), lane_(static_cast<int>(threadIdx.x) % 32), turn_(turn) {
    while (task.depth / kDepthStep / 32 > mask_) {
      mask_ = 2 * mask_ + 1;
    }
  }

  static constexpr int kSums = kNarrow ? 64 : 128;  // of a thread

  /// Takes the rounded sums of rows [row, row + num_rows), whose columns begin at block * 256, and
  /// will work as if there were `most_rows` >= num_rows: as long as the other warps of the
  /// warpgroup, which must issue the same products. Nothing may be waiting.
  __device__ void take(const float (&d)[kSums], std::int64_t row, int num_rows, int most_rows,
                       int block) {
    const int matrix_row = (lane_ / 8 & 1) * 8 + lane_ % 8;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kSums / 8; ++j) {
      const int i = 8 * j;
      store_matrices(staging_ + place(matrix_row, 2 * j + lane_ / 16), pack(d[i], d[i + 1]),
                     pack(d[i + 2], d[i + 3]), pack(d[i + 4], d[i + 5]), pack(d[i + 6], d[i + 7]));
    }
    __syncwarp();
    row_ = row;
    num_rows_ = num_rows;
    num_pieces_ = kNarrow ? (most_rows + 1) / 2 : most_rows;
    block_ = block;
    column_ = block * 256 + my_piece() * 8;
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
      value_ = load_shared_16(staging_ + place(row_of(done_), my_piece()));
      dot_ = 0.0F;
    }
    const std::uint32_t value = word(value_, part);
    n_[part] = {word(now_.gate, part), word(now_.up, part), 0};
    n_[part].pass_through(value, now_.weight, task_.activation, dot_);
  }

  /// Stores what the four parts gave.
  __device__ void leave() {
    const int offset = row_of(done_++);
    const std::int64_t row = row_ + offset;
    const bool mine = offset < num_rows_;
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
      for (int distance = kNarrow ? 8 : 16; distance > 0; distance /= 2) {
        dot += __shfl_xor_sync(~0U, dot, distance);
      }
      if (my_piece() == 0 && mine) {
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
  /// This lane's row of a piece.
  __device__ int row_of(int piece) const {
    return kNarrow ? 2 * piece + lane_ / 16 : piece;
  }

  /// This lane's 16-byte piece of that row.
  __device__ int my_piece() const {
    return kNarrow ? lane_ % 16 : lane_;
  }

  /// Place of 16-byte piece `piece` of 32 in a row.
  static __device__ std::uint32_t place(int row, int piece) {
    return piece / 8 * 2048 + swizzled(row, piece % 8);
  }

  static __device__ std::uint32_t word(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }

  /// Loads the pre-activations of a piece; of another one where there is none, to spare a branch.
  __device__ void look_ahead(int piece) {
    const int row = row_of(piece);
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

}  // namespace coterie::kernels::cuda
