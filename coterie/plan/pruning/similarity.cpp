// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/similarity.hpp"

#include <cmath>

#include "coterie/base/error.hpp"

namespace coterie::pruning {

std::string_view name_of(Measure measure) noexcept {
  switch (measure) {
    case Measure::kCosine: return "cosine";
    case Measure::kCentredCosine: return "centred_cosine";
    case Measure::kSquaredCosine: return "squared_cosine";
  }
  return "?";
}

Measure measure_of(std::string_view name) {
  for (const Measure measure :
       {Measure::kCosine, Measure::kCentredCosine, Measure::kSquaredCosine}) {
    if (name_of(measure) == name) {
      return measure;
    }
  }
  fail(ErrorCode::kBadInput, "similarity \"", name,
       "\" is not known; there are cosine, centred_cosine, squared_cosine");
}

SimilarityProfile::SimilarityProfile(std::int32_t num_experts)
    : num_experts_(static_cast<std::size_t>(num_experts)),
      products_(num_experts_, num_experts_),
      sums_(num_experts_) {
  COTERIE_REQUIRE(num_experts > 0, "a similarity profile of ", num_experts, " experts");
}

void SimilarityProfile::add(std::span<const float> values) {
  COTERIE_REQUIRE(values.size() % num_experts_ == 0, "similarity profile: ", values.size(),
                  " values are no rows of ", num_experts_, " experts");
  for (std::size_t start = 0; start < values.size(); start += num_experts_) {
    const auto row = values.subspan(start, num_experts_);
    for (std::size_t i = 0; i < num_experts_; ++i) {
      COTERIE_REQUIRE(std::isfinite(row[i]), "similarity profile: token ", num_tokens_, ", expert ",
                      i, ": value ", row[i], " is not finite");
      const auto value = static_cast<double>(row[i]);
      sums_[i] += value;
      for (std::size_t j = 0; j <= i; ++j) {
        products_(i, j) += value * static_cast<double>(row[j]);
      }
    }
    ++num_tokens_;
  }
}

void SimilarityProfile::add_products(const Matrix<double>& products) {
  COTERIE_REQUIRE(products.rows() == num_experts_ && products.columns() == num_experts_,
                  "similarity profile: products are [", products.rows(), ", ", products.columns(),
                  "], not [", num_experts_, ", ", num_experts_, "]");
  for (std::size_t i = 0; i < num_experts_; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      products_(i, j) += products(i, j);
    }
  }
  has_products_ = true;
  ++num_tokens_;
}

SimilarityTable SimilarityProfile::table(Measure measure) const {
  COTERIE_REQUIRE(num_tokens_ > 0, "a similarity profile without tokens");
  const bool centred = measure == Measure::kCentredCosine;
  COTERIE_REQUIRE(!centred || !has_products_,
                  "centred_cosine needs values of experts, not products of their outputs");
  const auto product = [&](std::size_t i, std::size_t j) {
    const double mean = centred ? sums_[i] * sums_[j] / static_cast<double>(num_tokens_) : 0.0;
    return products_(i, j) - mean;
  };
  SimilarityTable table(num_experts_, num_experts_);
  for (std::size_t i = 0; i < num_experts_; ++i) {
    table(i, i) = 1;
    for (std::size_t j = 0; j < i; ++j) {
      const double scale = std::sqrt(product(i, i)) * std::sqrt(product(j, j));
      // Rounding leaves a constant column with a tiny length, or a negative one (then NaN).
      const bool is_defined = scale > 1e-12 * std::sqrt(products_(i, i) * products_(j, j));
      const double cosine = is_defined ? product(i, j) / scale : 0.0;
      table(i, j) = measure == Measure::kSquaredCosine ? cosine * cosine : cosine;
      table(j, i) = table(i, j);
    }
  }
  return table;
}

}  // namespace coterie::pruning
