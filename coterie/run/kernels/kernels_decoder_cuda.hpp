// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/kernels_cuda.hpp"

/// What a decoder needs around its expert layers on a GPU: rotary positions, cross entropy, AdamW,
/// counts. Part of the room's door; contracts as in kernels_cuda.hpp.
namespace coterie::kernels::cuda {

/// Rotates pairs (i, i + d/2) of each head by its token's angle:
///
///     y[i] = x[i] c[i] - x[i + d/2] s[i],  y[i + d/2] = x[i + d/2] c[i] + x[i] s[i]
///
/// (Su et al., arXiv:2104.09864, equation 34, in the half-split order of Llama.) In fp32, rounded
/// once. The gradient is the rotation by the negative angle: `is_backward`.
struct Rotary {
  ConstMatrixView x;  ///< [T, heads * d] bf16 or fp32
  MatrixView y;       ///< out, the same shape and type; may be x
  std::int64_t head_dim = 0;
  const float* cosines = nullptr;  ///< [positions, d], of which the first d/2 are read
  const float* sines = nullptr;
  const std::int64_t* positions = nullptr;  ///< [T]
  bool is_backward = false;
};
void rotary(const Rotary& task, Stream stream);

/// Cross entropy of rows of logits: loss[r] = log(sum over v of exp(z[r, v])) - z[r, target[r]], 0
/// where the target is negative. Sums in fp32, one order.
struct CrossEntropy {
  MatrixView logits;                      ///< [n, V] bf16 or fp32
  const std::int64_t* targets = nullptr;  ///< [n] below V; negative: none
  float* loss = nullptr;                  ///< out [n]
  /// Overwrites the logits with d loss / d logits = softmax - one-hot (0 in rows without target).
  bool with_gradient = false;
};
void cross_entropy(const CrossEntropy& task, Stream stream);

/// One AdamW step of one tensor; the formula is that of training::AdamW, in fp32.
struct AdamWUpdate {
  std::int64_t count = 0;
  void* values = nullptr;  ///< in and out, bf16 or fp32
  DType value_type = DType::kBfloat16;
  const void* gradient = nullptr;  ///< the type of the values
  float* master = nullptr;         ///< fp32 copy of bf16 values that is changed instead; null: none
  void* average = nullptr;         ///< in and out: m
  void* square = nullptr;          ///< in and out: v
  DType state_type = DType::kFloat32;  ///< of m and v: fp32, or bf16 for bf16 values without master
  /// On the device; multiplies the gradient. Null: 1. A number that is not finite leaves all as it
  /// is.
  const float* scale = nullptr;
  float keep = 1;  ///< 1 - rate * decay
  float one_minus_beta1 = 0.1F;
  float beta2 = 0.95F;
  float one_minus_beta2 = 0.05F;
  float root_correction2 = 1;  ///< sqrt(1 - beta2^t)
  float epsilon = 1e-8F;
  float step_size = 0;  ///< rate / (1 - beta1^t)
};
void adamw_update(const AdamWUpdate& task, Stream stream);

/// counts[e] += how many of `ids` are e, for e in [0, num_experts); others are not counted.
struct CountIds {
  const std::int32_t* ids = nullptr;
  std::int64_t num_ids = 0;
  int num_experts = 0;             ///< up to 1024
  std::int64_t* counts = nullptr;  ///< in and out [num_experts]
};
void count_ids(const CountIds& task, Stream stream);

}  // namespace coterie::kernels::cuda
