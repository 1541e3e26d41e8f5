// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/outer_loops.hpp"
#include "coterie/run/kernels/product_counts.hpp"
#include "coterie/run/kernels/product_loops.hpp"

namespace coterie::kernels {
namespace {

/// Four lanes by the compiler's portable vectors.
struct Generic {
  using Scalar = float;
  using Element = float;
  typedef float Vec __attribute__((vector_size(16)));
  using Operand = Vec;
  static constexpr bool kPairs = false;
  using Four = Vec;
  typedef std::int32_t Int __attribute__((vector_size(16)));
  static constexpr i64 kLanes = 4;
  static constexpr int kTileRows = 2;
  static constexpr int kTileColumns = 4;
  static constexpr int kColumnsOfOneRow = 4;
  static constexpr int kColumnsOfTwoRows = 4;
  static constexpr i64 kSegment = 48;
  static constexpr i64 kPanelTiles = 12;
  static constexpr i64 kChunkRows = 64;
  static constexpr i64 kBlockSteps = 128;
  static constexpr i64 kGroupTiles = 4;
  static constexpr int kOuterRows = 4;
  static constexpr int kOuterVectors = 2;
  static constexpr i64 kOuterDepth = 256;
  static constexpr i64 kManyRows = 16;

  static Vec zero() { return Vec{}; }
  static Vec load(const float* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static void store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
  static Vec load_bf16(const std::uint16_t* p) {
    const Int bits = {p[0] << 16, p[1] << 16, p[2] << 16, p[3] << 16};
    Vec v;
    std::memcpy(&v, &bits, sizeof(v));
    return v;
  }
  static Vec broadcast(float v) { return Vec{v, v, v, v}; }
  static Vec multiply_add(Vec a, Vec b, Vec sum) { return a * b + sum; }
  static Four reduce_four(Vec a, Vec b, Vec c, Vec d) {
    const Four even = {a[0] + a[1], b[0] + b[1], c[0] + c[1], d[0] + d[1]};
    const Four odd = {a[2] + a[3], b[2] + b[3], c[2] + c[3], d[2] + d[3]};
    return even + odd;
  }
};

/// Two lanes of fp64.
struct WideGeneric {
  using Scalar = double;
  using Element = double;
  typedef double Vec __attribute__((vector_size(16)));
  using Operand = Vec;
  static constexpr bool kPairs = false;
  static constexpr i64 kLanes = 2;
  static constexpr int kOuterRows = 4;
  static constexpr int kOuterVectors = 2;
  static constexpr i64 kOuterDepth = 128;

  static Vec zero() { return Vec{}; }
  static Vec load(const double* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static void store(double* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
  static Vec broadcast(double v) { return Vec{v, v}; }
  static Vec multiply_add(Vec a, Vec b, Vec sum) { return a * b + sum; }
};

void run_generic(const ProductBlock& block) {
  count_product(Backend::kGeneric);
  run_fp32<Generic>(block);
}

template <class V>
void outer_generic(const OuterBlock& block) {
  count_product(Backend::kGeneric);
  run_outer<V>(block);
}

}  // namespace

ProductKernels product_kernels_generic() {
  return {ProductLoops<Fp32Math<Generic>, float>::scratch_bytes, run_generic,
          outer_generic<Generic>, outer_generic<WideGeneric>, down_backward_row<Generic>};
}

}  // namespace coterie::kernels
