// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coterie/run/kernels/activation.hpp"

/// Private to the room: activations of single elements. Each is a function of its argument's bits
/// alone, the same in every kernel that uses it.
namespace coterie::kernels::cuda {

/// v / (1 + exp(-v)) by the approximate units, both good to about 2^-22.
__device__ inline float silu(float v) {
  float power = 0.0F;
  float reciprocal = 0.0F;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * -1.4426950408889634F));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0F + power));
  return v * reciprocal;
}

/// v Phi(v).
__device__ inline float gelu(float v) {
  return 0.5F * v * (1.0F + erff(v * 0.70710678118654752F));
}

/// v (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (v + 0.044715 v^3), written as v / (1 + exp(-2 u)).
__device__ inline float gelu_tanh(float v) {
  return v / (1.0F + expf(-1.5957691216057308F * (v + 0.044715F * v * v * v)));
}

/// An activation of one argument.
__device__ inline float activate(float v, Activation activation) {
  return activation == Activation::kGelu ? gelu(v) : gelu_tanh(v);
}

}  // namespace coterie::kernels::cuda
