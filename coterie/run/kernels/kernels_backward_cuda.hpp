// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coterie/run/kernels/kernels_cuda.hpp"

/// Backward of the expert layer on a GPU. Part of the room's door; contracts as in
/// kernels_cuda.hpp. Saved by forward: the layer's input rows and the pre-activation.
///
/// With y = sum over j of w_j (down_e h_j + b_e), h = act(pre), pre = gate_up_e x + c_e, where for
/// SwiGLU act([gate | up]) = silu(gate) up:
///
///     grad_h = w down_e^T grad_y       grad_w    = (down_e^T grad_y) . h + grad_y . b_e
///     grad_pre = grad_h act'(pre)      grad_down = sum over rows of grad_y^T (w h)
///     grad_x = gate_up_e^T grad_pre    grad_gate_up = sum over rows of grad_pre^T x
///     grad_b = sum over rows of w grad_y         grad_c = sum over rows of grad_pre
///
/// Sums along K and over rows run in one order, so that the same input gives the same bits; a row
/// of a row gradient depends on that row and the weights alone.
namespace coterie::kernels::cuda {

/// Where the gradient of one matrix an expert goes: contiguous [E, rows, columns].
struct ExpertGradients {
  void* data = nullptr;
  std::int64_t num_experts = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  DType type = DType::kBfloat16;  ///< that of the operands, or fp32
  bool accumulate = false;        ///< adds to what is there; else overwrites
};

/// to[pos_of[p]] = from[p] for the pairs p in [0, num_pairs) that have a row: routing weights
/// [T, k] as weights of rows.
struct WeightsOfRows {
  const float* from = nullptr;
  const std::int32_t* pos_of = nullptr;
  std::int64_t num_pairs = 0;
  float* to = nullptr;  ///< out [R]
};
void weights_of_rows(const WeightsOfRows& task, Stream stream);

/// How many partial sums a row's dot product is left in by grouped_down_backward; a bias adds one.
constexpr std::int64_t row_dot_parts(std::int64_t intermediate) {
  return (intermediate + 255) / 256;
}

/// Through the down-projection and the activation, back to the pre-activation.
struct GroupedDownBackward {
  ConstMatrixView grad_y;                        ///< [T, H], the type of the weights
  std::span<const ConstMatrixView> more_grad_y;  ///< rows numbered after those of grad_y
  const std::int32_t* row_token = nullptr;       ///< [R]; null: row r
  const std::int32_t* expert_offsets = nullptr;  ///< [E + 1]
  const float* row_weights = nullptr;            ///< [R] routing weight of each row; null: all 1
  ExpertWeights down;                            ///< [E, H, I]
  ConstMatrixView pre;                           ///< [at least R, 2I] as grouped_up stored it
                                                 ///< ([.., I] for activations without gate)
  MatrixView grad_pre;                           ///< out, the size of pre; may be pre itself
  MatrixView hidden;          ///< out [at least R, I]: row weight times hidden, which the weight
                              ///< gradient of down needs; the generic kernels need it always
  float* row_dots = nullptr;  ///< out [row_dot_parts(I), row_dots_stride], null: not wanted: parts
                              ///< of the gradient of each row's weight
  std::int64_t row_dots_stride = 0;  ///< at least R
  Activation activation = Activation::kSwiGlu;
  const void* bias =
      nullptr;  ///< [E, H], the type of the weights: the bias of the down-projection,
                ///< whose part is row row_dot_parts(I) of row_dots; null: none
};
void grouped_down_backward(const GroupedDownBackward& task, const ProductOptions& options,
                           Stream stream);

/// to[p] = the parts of row pos_of[p] added in order, 0 where pos_of[p] is -1.
struct SumRowDots {
  const float* parts = nullptr;  ///< [num_parts, stride]
  std::int64_t num_parts = 0;
  std::int64_t stride = 0;
  const std::int32_t* pos_of = nullptr;  ///< [num_pairs]; null: row p
  std::int64_t num_pairs = 0;
  float* to = nullptr;  ///< out [num_pairs]
};
void sum_row_dots(const SumRowDots& task, Stream stream);

/// grad_rows[r] = gate_up_e^T grad_pre[r]: one row an expanded row; merge_rows without weights adds
/// a token's rows.
struct GroupedUpBackward {
  ConstMatrixView grad_pre;                      ///< [at least R, 2I], the type of the weights
  const std::int32_t* expert_offsets = nullptr;  ///< [E + 1]
  ExpertWeights gate_up;                         ///< [E, 2I, H] ([E, I, H] without gate)
  MatrixView grad_rows;                          ///< out [at least R, H], same type
};
void grouped_up_backward(const GroupedUpBackward& task, const ProductOptions& options,
                         Stream stream);

/// gradient[e] (+)= sum over the rows r of expert e of a[a_rows[r]]^T b[b_rows[r]], in ascending r.
/// An expert without rows gives zeros, or keeps what is there.
struct GroupedWeightGradient {
  ConstMatrixView a;                        ///< [.., rows of the gradient]
  std::span<const ConstMatrixView> more_a;  ///< rows numbered after those of a
  const std::int32_t* a_rows = nullptr;     ///< [R]; null: row r
  ConstMatrixView b;                        ///< [.., columns of the gradient]
  std::span<const ConstMatrixView> more_b;
  const std::int32_t* b_rows = nullptr;          ///< the Hopper kernel gathers a or b, not both
  const std::int32_t* expert_offsets = nullptr;  ///< [E + 1]
  ExpertGradients gradient;                      ///< [E, columns of a, columns of b]
};
void grouped_weight_gradient(const GroupedWeightGradient& task, const ProductOptions& options,
                             Stream stream);

/// Gradients of biases: those of the up-projection are the sums of grad_pre; those of the
/// down-projection have a = grad_y with its row list and the routing weights of rows.
struct GroupedBiasGradient {
  ConstMatrixView a;                             ///< [.., M]
  std::span<const ConstMatrixView> more_a;       ///< rows numbered after those of a
  const std::int32_t* a_rows = nullptr;          ///< [R]; null: row r
  const float* row_weights = nullptr;            ///< [R]; null: all 1
  const std::int32_t* expert_offsets = nullptr;  ///< [E + 1]
  ExpertGradients gradient;                      ///< [E, 1, M]
};
/// gradient[e] (+)= sum over the rows r of expert e of row_weights[r] a[a_rows[r]] in fp32, each
/// term rounded, then added, in ascending r: the bits of kernels::grouped_bias_gradient. An expert
/// without rows gives zeros, or keeps what is there.
void grouped_bias_gradient(const GroupedBiasGradient& task, Stream stream);

/// Backward of expert_layer.
struct ExpertLayerBackward {
  ConstMatrixView grad_y;             ///< [T, H] bf16
  ConstMatrixView x;                  ///< [T, H] bf16, as forward had it
  MatrixView pre;                     ///< [T k, 2I] bf16, as forward stored it ([T k, I]
                                      ///< without gate)
  const std::int32_t* ids = nullptr;  ///< [T, k]
  const float* weights = nullptr;     ///< [T, k]
  int top_k = 1;
  ExpertWeights gate_up;
  ExpertWeights down;
  bool reuse_pre = false;         ///< pre may be overwritten, which saves its size in workspace
  MatrixView grad_x;              ///< out [T, H] bf16 or fp32
  float* grad_weights = nullptr;  ///< out [T, k], 0 where the id is -1; null: not wanted
  ExpertGradients grad_gate_up;
  ExpertGradients grad_down;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  Activation activation = Activation::kSwiGlu;
  const void* down_bias = nullptr;  ///< [E, H] as forward had it; null: none
  ExpertGradients grad_up_bias;     ///< [E, 1, P]; data null: not wanted
  ExpertGradients grad_down_bias;   ///< [E, 1, H]; data null: not wanted
};
/// Bytes that expert_layer_backward needs: depends on sizes, activation, reuse_pre, whether
/// grad_weights is wanted, and on whether grad_gate_up is overwritten, since then it serves as
/// scratch before it gets its result.
std::size_t expert_layer_backward_workspace_bytes(const ExpertLayerBackward& task);
void expert_layer_backward(const ExpertLayerBackward& task, const ProductOptions& options,
                           Stream stream);

}  // namespace coterie::kernels::cuda
