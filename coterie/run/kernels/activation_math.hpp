// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <numbers>

#include "coterie/run/kernels/activation.hpp"

/// Private to the room: activations and their derivatives, one element at a time in double.
namespace coterie::kernels {

/// An activation at one point.
struct ActivationPoint {
  double hidden = 0.0;     ///< the activation
  double by_first = 0.0;   ///< its derivative by v (by gate for kSwiGlu)
  double by_second = 0.0;  ///< its derivative by up; kSwiGlu only
};

/// `up` counts for kSwiGlu only.
inline ActivationPoint activation_at(Activation activation, double v, double up) {
  switch (activation) {
    case Activation::kSwiGlu: {
      const double sigmoid = 1.0 / (1.0 + std::exp(-v));
      const double silu = v * sigmoid;
      return {silu * up, up * sigmoid * (1.0 + v * (1.0 - sigmoid)), silu};
    }
    case Activation::kGelu: {
      const double below = 0.5 * std::erfc(-v / std::numbers::sqrt2);  // Phi(v)
      const double density =
          std::exp(-0.5 * v * v) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      return {v * below, below + v * density, 0.0};
    }
    case Activation::kGeluTanh: {
      // (1 + tanh u) / 2 = 1 / (1 + exp(-2 u))
      const double twice = 2.0 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
      const double share = 1.0 / (1.0 + std::exp(-twice * (v + 0.044715 * v * v * v)));
      const double slope = twice * (1.0 + 3.0 * 0.044715 * v * v);
      return {v * share, share + v * share * (1.0 - share) * slope, 0.0};
    }
  }
  return {};
}

}  // namespace coterie::kernels
