// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private to the room: activations and their derivatives over rows of fp32 sums. See
// vector_types.hpp.

#include "coterie/run/kernels/activation_block.hpp"
#include "coterie/run/kernels/vector_types.hpp"

namespace coterie::kernels {

/// exp(v) for v <= 88, elementwise, about 2 ulp; 0 below -87.
template <class Isa>
COTERIE_INLINE typename Isa::Vec exponential(typename Isa::Vec v) {
  using Vec = typename Isa::Vec;
  using Int = typename Isa::Int;
  const Vec high = Isa::zero() + 88.0F;
  const Vec low = Isa::zero() - 87.0F;
  v = v > high ? high : v;
  v = v < low ? low : v;
  const Vec magic = Isa::zero() + 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const Vec n = (v * 1.44269504088896341F + magic) - magic;
  const Vec r = (v - n * 0.693359375F) + n * 2.12194440e-4F;
  Vec p = Isa::zero() + 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const Int exponent = (__builtin_convertvector(n, Int) + 127) << 23;
  Vec scale;
  std::memcpy(&scale, &exponent, sizeof(scale));
  return p * scale;
}

/// Normal distribution function and exp(-v^2 / 2). The tail is exp(-v^2 / 2) times a polynomial in
/// 1 / (1 + 0.3 |v|), fitted to a relative error of 1.5e-7.
template <class Isa>
struct Normal {
  typename Isa::Vec below, density;  ///< density without its factor 1 / sqrt(2 pi)
};
template <class Isa>
COTERIE_INLINE Normal<Isa> normal_at(typename Isa::Vec v) {
  using Vec = typename Isa::Vec;
  const Vec zero = Isa::zero();
  const Vec size = v < zero ? -v : v;
  const Vec density = exponential<Isa>(v * v * -0.5F);
  const Vec t = (zero + 1.0F) / (size * 0.3F + 1.0F);
  Vec p = zero + 0.035674876881F;
  p = p * t - 0.157203499291F;
  p = p * t + 0.206354195663F;
  p = p * t - 0.053684245495F;
  p = p * t + 0.128561924186F;
  p = p * t + 0.099913408763F;
  p = p * t + 0.120753968249F;
  p = p * t + 0.119629298106F;
  const Vec tail = density * (p * t);
  return {v < zero ? tail : 1.0F - tail, density};
}

/// An activation and its derivatives at one vector of points; by_second for kSwiGlu only.
template <class Isa>
struct VectorPoint {
  typename Isa::Vec hidden, by_first, by_second;
};

template <class Isa>
COTERIE_INLINE VectorPoint<Isa> swiglu_at(typename Isa::Vec gate, typename Isa::Vec up) {
  const typename Isa::Vec denominator = exponential<Isa>(-gate) + 1.0F;
  const typename Isa::Vec silu = gate / denominator;
  const typename Isa::Vec sigmoid = 1.0F / denominator;
  return {silu * up, up * (sigmoid * (gate * (1.0F - sigmoid) + 1.0F)), silu};
}

template <class Isa>
COTERIE_INLINE VectorPoint<Isa> gelu_at(typename Isa::Vec v) {
  const Normal<Isa> normal = normal_at<Isa>(v);
  return {v * normal.below, normal.below + v * normal.density * 0.398942280401F, Isa::zero()};
}

template <class Isa>
COTERIE_INLINE VectorPoint<Isa> gelu_tanh_at(typename Isa::Vec v) {
  constexpr float kTwice = 1.595769121606F;  // 2 sqrt(2 / pi)
  // Beyond +-20 the tangent is +-1 in any precision, and powers of v must not overflow.
  typename Isa::Vec near = v > 20.0F ? Isa::zero() + 20.0F : v;
  near = near < -20.0F ? Isa::zero() - 20.0F : near;
  const typename Isa::Vec square = near * near;
  const typename Isa::Vec twice = near * (square * 0.044715F + 1.0F) * kTwice;
  const typename Isa::Vec share = 1.0F / (exponential<Isa>(-twice) + 1.0F);
  const typename Isa::Vec slope = square * (3.0F * 0.044715F * kTwice) + kTwice;
  return {v * share, share + near * share * (1.0F - share) * slope, Isa::zero()};
}

template <class Isa>
COTERIE_INLINE VectorPoint<Isa> activate(Epilogue epilogue, typename Isa::Vec first,
                                         typename Isa::Vec second) {
  switch (epilogue) {
    case Epilogue::kSwiGlu: return swiglu_at<Isa>(first, second);
    case Epilogue::kGelu: return gelu_at<Isa>(first);
    case Epilogue::kGeluTanh: return gelu_tanh_at<Isa>(first);
    case Epilogue::kNone: break;
  }
  return {first, Isa::zero() + 1.0F, Isa::zero()};
}

/// Writes `count` fp32 values as the output's type, rounded to nearest even.
template <class Isa>
void store_outputs(const float* from, i64 count, char* to, DType type) {
  if (type == DType::kFloat32) {
    i64 i = 0;
    for (; i + Isa::kLanes <= count; i += Isa::kLanes) {
      Isa::store(reinterpret_cast<float*>(to) + i, Isa::load(from + i));
    }
    std::memcpy(to + i * 4, from + i, static_cast<std::size_t>(count - i) * 4);
    return;
  }
  auto* const out = reinterpret_cast<std::uint16_t*>(to);
  for (i64 i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, 4);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40U;
    out[i] = static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
}

/// Reads `count` values of fp32 or bf16 as fp32, then zeros up to `padded`.
template <class Isa>
void load_inputs(const char* from, DType type, i64 count, i64 padded, float* to) {
  if (type == DType::kFloat32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
  } else {
    const auto* const in = reinterpret_cast<const std::uint16_t*>(from);
    for (i64 i = 0; i < count; ++i) {
      const std::uint32_t bits = static_cast<std::uint32_t>(in[i]) << 16;
      std::memcpy(to + i, &bits, 4);
    }
  }
  if (count < padded) {
    std::memset(to + count, 0, static_cast<std::size_t>(padded - count) * 4);
  }
}

/// sums[i] += bias[i]; fp32 or bf16.
template <class Isa>
void add_bias(const char* bias, DType type, i64 count, float* sums) {
  for (i64 i = 0; i < count; ++i) {
    float value;
    load_inputs<Isa>(bias + i * (type == DType::kFloat32 ? 4 : 2), type, 1, 1, &value);
    sums[i] += value;
  }
}

/// One row's share of grouped_down_backward, kPartColumns at a time.
template <class Isa>
void down_backward_row(const DownBackwardRow& row) {
  alignas(64) float first[kPartColumns], second[kPartColumns], hidden[kPartColumns];
  const bool gated = row.activation == Epilogue::kSwiGlu;
  for (i64 begin = 0; begin < row.count; begin += kPartColumns) {
    const i64 count = row.count - begin < kPartColumns ? row.count - begin : kPartColumns;
    load_inputs<Isa>(row.pre + begin * row.pre_size, row.pre_type, count, kPartColumns, first);
    if (gated) {
      load_inputs<Isa>(row.pre_second + begin * row.pre_size, row.pre_type, count, kPartColumns,
                       second);
    }
    alignas(64) float product[kPartColumns];
    for (i64 i = 0; i < kPartColumns; i += Isa::kLanes) {
      const auto at = activate<Isa>(row.activation, Isa::load(first + i),
                                    gated ? Isa::load(second + i) : Isa::zero());
      const typename Isa::Vec d = Isa::load(row.d + begin + i);
      const typename Isa::Vec weighted = d * row.weight;
      Isa::store(product + i, d * at.hidden);
      Isa::store(hidden + i, at.hidden * row.weight);
      Isa::store(first + i, weighted * at.by_first);
      Isa::store(second + i, weighted * at.by_second);
    }
    if (row.hidden != nullptr) {
      store_outputs<Isa>(hidden, count, row.hidden + begin * row.hidden_size, row.hidden_type);
    }
    if (row.grad != nullptr) {
      store_outputs<Isa>(first, count, row.grad + begin * row.grad_size, row.grad_type);
      if (gated) {
        store_outputs<Isa>(second, count, row.grad_second + begin * row.grad_size, row.grad_type);
      }
    }
    if (row.parts != nullptr) {
      row.parts[begin / kPartColumns] = part_sum(product, count);
    }
  }
}

}  // namespace coterie::kernels
