// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "coterie/run/kernels/backend.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

namespace coterie::kernels {

/// All back ends of this machine but the reference.
inline std::vector<Backend> vector_backends() {
  std::vector<Backend> all = available_backends();
  std::erase(all, Backend::kReference);
  return all;
}

/// |got - wanted| <= tolerance * (|wanted| + scale) everywhere, no NaN.
inline ::testing::AssertionResult is_close(const TypedMatrix& got, const TypedMatrix& wanted,
                                           double tolerance, double scale) {
  const ConstMatrixView view = wanted.view();
  for (std::int64_t r = 0; r < view.rows; ++r) {
    for (std::int64_t c = 0; c < view.columns; ++c) {
      const double expected = wanted.at(r, c);
      const double value = got.at(r, c);
      if (!(std::abs(value - expected) <= tolerance * (std::abs(expected) + scale))) {
        return ::testing::AssertionFailure()
               << "[" << r << ", " << c << "] is " << value << ", expected " << expected;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

/// Relative error that sums of a type's products may have against double; more if they are stored
/// as bf16.
inline double tolerance_of(DType type) {
  return type == DType::kFloat64 ? 1e-13 : type == DType::kFloat32 ? 1e-5 : 8e-3;
}

}  // namespace coterie::kernels
