// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"

namespace coterie::cost {

/// One straight piece: time = alpha_s + size * beta_s, for sizes from `from_size` up to the next
/// piece. Sizes are bytes (links) or floating-point operations (products).
struct Piece {
  double from_size = 0;
  double alpha_s = 0;
  double beta_s = 0;

  bool operator==(const Piece&) const = default;
};

/// How well a model fits the points that it was made from.
struct FitQuality {
  std::int32_t num_points = 0;
  double smallest_size = 0;
  double largest_size = 0;
  double r_squared = 0;               ///< 1 - residual / total sum of squares, in seconds
  double largest_relative_error = 0;  ///< max of |predicted - measured| / measured

  bool operator==(const FitQuality&) const = default;
};

/// Time of an operation by its size: alpha + n beta (FSMoE, section 4.1), in pieces where one line
/// does not fit. Continuous and not falling. The last piece has no end.
class CostModel {
 public:
  /// Takes no time.
  CostModel() : pieces_{{}} {}
  /// One line. kBadInput if alpha or beta is negative or not finite.
  CostModel(double alpha_s, double beta_s);
  /// kBadInput naming `where` unless pieces start at 0, ascend, are continuous (to 1e-6) and do not
  /// fall.
  CostModel(std::vector<Piece> pieces, FitQuality quality, const std::string& where);

  /// Seconds that an operation of this size takes; nothing (size 0) takes no time.
  [[nodiscard]] double time_s(double size) const {
    if (size <= 0) {
      return 0;
    }
    std::size_t i = pieces_.size() - 1;
    while (i > 0 && size < pieces_[i].from_size) {
      --i;
    }
    return pieces_[i].alpha_s + size * pieces_[i].beta_s;
  }
  /// The largest size that takes at most `time_s`; 0 if even the smallest takes longer (FSMoE's
  /// g_inv, section 5.2). Infinity if time does not depend on size.
  [[nodiscard]] double size_in(double time_s) const;
  /// Seconds that the smallest operation takes.
  [[nodiscard]] double alpha_s() const { return pieces_.front().alpha_s; }
  /// Seconds a unit of size, for large sizes.
  [[nodiscard]] double beta_s() const { return pieces_.back().beta_s; }
  /// The same with every alpha and every beta multiplied.
  [[nodiscard]] CostModel scaled(double alpha_factor, double beta_factor) const;

  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  [[nodiscard]] const FitQuality& quality() const { return quality_; }

  bool operator==(const CostModel&) const = default;

 private:
  std::vector<Piece> pieces_;
  FitQuality quality_;
};

Json to_json(const CostModel& model);
/// Reads what to_json wrote. kBadInput names the place.
CostModel cost_model_from(const JsonReader& reader);

}  // namespace coterie::cost
