// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "coterie/run/kernels/activation_block.hpp"
#include "coterie/run/kernels/backend.hpp"
#include "coterie/run/kernels/tensor_view.hpp"

/// Private to the room: the product x w^T that linear, grouped_up and grouped_down are made of.
namespace coterie::kernels {

/// Products of several experts: output rows [offsets[e], offsets[e + 1]) = input rows times w[e]^T.
/// With kSwiGlu, w[e] is [2N, K] and the output silu(first half) * second half, else w[e] is [N,
/// K].
struct GroupedProduct {
  ConstMatrixView x;
  std::span<const std::int32_t>
      row_of;  ///< input row of each output row, -1 zeros; empty: the same
  std::span<const std::int64_t> offsets;
  std::span<const ConstMatrixView> w;
  MatrixView y;
  Epilogue epilogue = Epilogue::kNone;
  std::span<const ConstMatrixView> bias = {};  ///< [E] of [1, number of rows of w]; empty: none
  MatrixView pre = {};  ///< what the epilogue is given; data null: not wanted
};

/// Plain loops, sums in double.
void grouped_product_reference(const GroupedProduct& task, Threads& threads);

/// Vector kernels of `backend`, which must be available and not kReference.
void grouped_product_cpu(const GroupedProduct& task, Backend backend, Threads& threads);

/// The same for fp64 matrices; each element is one chain of multiply-adds along K.
void grouped_product_fp64(const GroupedProduct& task, Backend backend, Threads& threads);

/// Runs one of the three. `backend` is resolved.
void grouped_product(const GroupedProduct& task, Backend backend, Threads& threads);

}  // namespace coterie::kernels
