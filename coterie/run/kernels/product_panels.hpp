// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: operands of a product, packed in steps. See vector_types.hpp.

#include "coterie/run/kernels/vector_types.hpp"

namespace coterie::kernels {

/// fp32 arithmetic: bf16 operands are widened, exactly, when packed or loaded.
template <class I>
struct Fp32Math {
  using Isa = I;
  using Element = float;  // of panels
  using Operand = typename Isa::Vec;
  static constexpr i64 kStep = Isa::kLanes;

  static COTERIE_INLINE Operand load(const float* p) { return Isa::load(p); }
  static COTERIE_INLINE Operand load(const std::uint16_t* p) { return Isa::load_bf16(p); }
  static COTERIE_INLINE void store(float* p, Operand v) { Isa::store(p, v); }
  static COTERIE_INLINE typename Isa::Vec step(Operand a, Operand b, typename Isa::Vec sum) {
    return Isa::multiply_add(a, b, sum);
  }
};

/// The elements [0, count) at p, then zeros up to a whole step.
template <class Math, class T>
COTERIE_INLINE typename Math::Operand load_part(const T* p, i64 count) {
  alignas(64) T buffer[Math::kStep] = {};
  for (i64 i = 0; i < count; ++i) {
    buffer[i] = p[i];
  }
  return Math::load(buffer);
}

/// Packs one row of `depth` elements to steps that lie `stride` elements apart; null packs zeros.
template <class Math, class T>
void pack_row(const T* row, i64 depth, typename Math::Element* to, i64 stride) {
  const i64 whole = row == nullptr ? 0 : depth / Math::kStep;
  for (i64 s = 0; s < whole; ++s) {
    Math::store(to + s * stride, Math::load(row + s * Math::kStep));
  }
  const i64 steps = (depth + Math::kStep - 1) / Math::kStep;
  for (i64 s = whole; s < steps; ++s) {
    const i64 left = row == nullptr ? 0 : depth - s * Math::kStep;
    Math::store(to + s * stride, load_part<Math>(row + s * Math::kStep * (row != nullptr), left));
  }
}

/// Packs elements [first, first + depth) of C weight rows: [step][C][step elements].
template <class Math, int C, class T>
void pack_columns(const T* const* w, i64 first, i64 depth, typename Math::Element* to) {
  const T* row[C];
  for (int j = 0; j < C; ++j) {
    row[j] = w[j] + first;
  }
  const i64 whole = depth / Math::kStep;
  for (i64 s = 0; s < whole; ++s) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      Math::store(to + j * Math::kStep, Math::load(row[j] + s * Math::kStep));
    }
    to += C * Math::kStep;
  }
  if (whole * Math::kStep < depth) {
    for (int j = 0; j < C; ++j) {
      const T* const at = row[j] + whole * Math::kStep;
      Math::store(to + j * Math::kStep, load_part<Math>(at, depth - whole * Math::kStep));
    }
  }
}

}  // namespace coterie::kernels
