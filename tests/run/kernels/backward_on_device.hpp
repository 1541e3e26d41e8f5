// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "coterie/run/kernels/kernels.hpp"
#include "tests/run/kernels/on_device.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

/// What tests of the backward operations on a GPU share: rows of a small layer.
namespace coterie::kernels {

constexpr DType kType = DType::kBfloat16;
constexpr int kTokens = 150;
constexpr int kHidden = 136;
constexpr int kInner = 200;
constexpr int kExperts = 5;  // the last one without rows
constexpr int kTopK = 3;

/// Rows of a layer sorted by expert.
struct Rows {
  std::vector<std::int32_t> offsets{0};
  std::vector<std::int64_t> wide_offsets{0};
  std::vector<std::int32_t> row_token;
  std::vector<float> row_weights;
};

inline Rows sorted_rows() {
  const std::vector<std::int32_t> ids = random_ids(kTokens, kTopK, kExperts - 1);
  Random random(9);
  Rows rows;
  for (int e = 0; e < kExperts; ++e) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == e) {
        rows.row_token.push_back(static_cast<std::int32_t>(i) / kTopK);
        rows.row_weights.push_back(static_cast<float>(random.uniform()));
      }
    }
    rows.offsets.push_back(static_cast<std::int32_t>(rows.row_token.size()));
    rows.wide_offsets.push_back(rows.offsets.back());
  }
  return rows;
}

/// Relative error of device rows against a reference matrix.
inline double error_of(const std::vector<std::uint16_t>& got, const TypedMatrix& want) {
  double error = 0.0;
  double size = 0.0;
  const ConstMatrixView view = want.view();
  for (std::int64_t r = 0; r < view.rows; ++r) {
    for (std::int64_t c = 0; c < view.columns; ++c) {
      const double value = from_bfloat16(got[static_cast<std::size_t>(r * view.columns + c)]);
      error += (value - want.at(r, c)) * (value - want.at(r, c));
      size += want.at(r, c) * want.at(r, c);
    }
  }
  return std::sqrt(error / size);  // NaN if anything is
}

inline std::vector<ConstMatrixView> matrices(const std::vector<std::uint16_t>& data,
                                             std::int64_t rows, std::int64_t columns) {
  std::vector<ConstMatrixView> views;
  for (int e = 0; e < kExperts; ++e) {
    views.emplace_back(data.data() + e * rows * columns, rows, columns, columns, kType);
  }
  return views;
}

inline std::vector<std::uint16_t> poison(std::int64_t count) {
  return std::vector<std::uint16_t>(static_cast<std::size_t>(count), 0xFFFF);
}

inline std::vector<float> nans(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), std::nanf(""));
}

/// The backward operations with each kind of kernel.
class BackwardOnGpu : public testing::TestWithParam<cuda::Path> {
 protected:
  [[nodiscard]] cuda::ProductOptions options() const {
    cuda::ProductOptions options;
    options.path = GetParam();
    return options;
  }
};

}  // namespace coterie::kernels
