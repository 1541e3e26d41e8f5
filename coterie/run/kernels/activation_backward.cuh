// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/run/kernels/activation.cuh"

/// Private to the room: activations and their derivatives, of single elements.
namespace coterie::kernels::cuda {

/// hidden = silu(gate) up, and what dL/d(hidden) is multiplied by to become dL/d(gate), dL/d(up).
struct SwiGluGradient {
  float hidden;
  float by_gate;
  float by_up;
};

/// Volatile: kernels place it between products, and there it shall stay. With s = 1 / (1 +
/// exp(-gate)): silu = gate s, silu' = s (1 + gate (1 - s)).
__device__ inline SwiGluGradient swiglu_backward(float gate, float up) {
  float power = 0.0F;
  float s = 0.0F;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(gate * -1.4426950408889634F));
  asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0F + power));
  const float silu = gate * s;
  return {silu * up, up * (s + silu * (1.0F - s)), silu};
}

/// hidden = act(pre), and dL/d(pre) = by_pre dL/d(hidden).
struct GeluGradient {
  float hidden;
  float by_pre;
};

/// Exact: Phi(v) + v phi(v). Tanh form, with t = tanh(u), u = sqrt(2 / pi) (v + 0.044715 v^3):
/// (1 + t) / 2 + v (1 - t^2) u' / 2.
__device__ inline GeluGradient gelu_backward(float v, Activation activation) {
  if (activation == Activation::kGelu) {
    const float cdf = 0.5F * (1.0F + erff(v * 0.70710678118654752F));
    return {v * cdf, cdf + v * 0.39894228040143268F * expf(-0.5F * v * v)};
  }
  const float half = 1.0F / (1.0F + expf(-1.5957691216057308F * (v + 0.044715F * v * v * v)));
  const float slope = 1.5957691216057308F * (1.0F + 3.0F * 0.044715F * v * v);  // 2 u'
  return {v * half, half + v * half * (1.0F - half) * slope};
}

}  // namespace coterie::kernels::cuda
