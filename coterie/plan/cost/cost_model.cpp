// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/cost_model.hpp"

#include <cmath>
#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/plan/cost/read_json.hpp"

namespace coterie::cost {
namespace {

constexpr double kContinuity = 1e-6;

double value_at(const Piece& piece, double size) {
  return piece.alpha_s + size * piece.beta_s;
}

void check_pieces(const std::vector<Piece>& pieces, const std::string& where) {
  COTERIE_REQUIRE(!pieces.empty(), where, ": no piece");
  COTERIE_REQUIRE(pieces.front().from_size == 0, where, ": the first piece starts at size ",
                  pieces.front().from_size, " instead of 0");
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    COTERIE_REQUIRE(std::isfinite(piece.from_size) && std::isfinite(piece.alpha_s) &&
                        std::isfinite(piece.beta_s) && piece.beta_s >= 0,
                    where, ": piece ", i, " has alpha ", piece.alpha_s, " s, beta ", piece.beta_s,
                    " s: beta must not be negative");
    if (i == 0) {
      COTERIE_REQUIRE(piece.alpha_s >= 0, where, ": alpha ", piece.alpha_s, " s is negative");
      continue;
    }
    const Piece& before = pieces[i - 1];
    COTERIE_REQUIRE(piece.from_size > before.from_size, where, ": piece ", i, " starts at ",
                    piece.from_size, ", not after ", before.from_size);
    const double left = value_at(before, piece.from_size);
    const double right = value_at(piece, piece.from_size);
    COTERIE_REQUIRE(std::abs(left - right) <= kContinuity * std::max(left, right) + 1e-15, where,
                    ": piece ", i, " begins with ", right, " s where the one before it ends with ",
                    left, " s");
  }
}

}  // namespace

CostModel::CostModel(double alpha_s, double beta_s)
    : CostModel({{0, alpha_s, beta_s}}, {}, "cost model") {}

CostModel::CostModel(std::vector<Piece> pieces, FitQuality quality, const std::string& where)
    : pieces_(std::move(pieces)), quality_(quality) {
  check_pieces(pieces_, where);
}

double CostModel::size_in(double time_s) const {
  for (std::size_t i = pieces_.size(); i-- > 0;) {
    const Piece& piece = pieces_[i];
    if (time_s < value_at(piece, piece.from_size)) {
      continue;
    }
    const double end =
        i + 1 < pieces_.size() ? pieces_[i + 1].from_size : std::numeric_limits<double>::infinity();
    return piece.beta_s > 0 ? std::min(end, (time_s - piece.alpha_s) / piece.beta_s) : end;
  }
  return 0;
}

CostModel CostModel::scaled(double alpha_factor, double beta_factor) const {
  COTERIE_REQUIRE(alpha_factor >= 0 && beta_factor >= 0 && std::isfinite(alpha_factor) &&
                      std::isfinite(beta_factor),
                  "cost model: factors ", alpha_factor, ", ", beta_factor);
  std::vector<Piece> pieces = pieces_;
  pieces.front().alpha_s *= alpha_factor;
  pieces.front().beta_s *= beta_factor;
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    pieces[i].beta_s *= beta_factor;
    pieces[i].alpha_s =
        pieces[i - 1].alpha_s + pieces[i].from_size * (pieces[i - 1].beta_s - pieces[i].beta_s);
  }
  return {std::move(pieces), quality_, "cost model"};
}

Json to_json(const CostModel& model) {
  Json pieces = Json::array();
  for (const Piece& piece : model.pieces()) {
    pieces.push_back(
        {{"from_size", piece.from_size}, {"alpha_s", piece.alpha_s}, {"beta_s", piece.beta_s}});
  }
  Json json = {{"pieces", std::move(pieces)}};
  const FitQuality& fit = model.quality();
  if (fit.num_points > 0) {
    json["fit"] = {{"num_points", fit.num_points},
                   {"smallest_size", fit.smallest_size},
                   {"largest_size", fit.largest_size},
                   {"r_squared", fit.r_squared},
                   {"largest_relative_error", fit.largest_relative_error}};
  }
  return json;
}

CostModel cost_model_from(const JsonReader& reader) {
  constexpr double kLargest = 1e30;
  check_keys(reader, {"pieces", "fit"});
  const JsonReader list = reader.at("pieces");
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonReader entry = list.at(i);
    check_keys(entry, {"from_size", "alpha_s", "beta_s"});
    pieces.push_back({read_number(entry.at("from_size"), 0, kLargest),
                      read_number(entry.at("alpha_s"), -kLargest, kLargest),
                      read_number(entry.at("beta_s"), 0, kLargest)});
  }
  FitQuality fit;
  if (reader.has("fit")) {
    const JsonReader entry = reader.at("fit");
    check_keys(entry, {"num_points", "smallest_size", "largest_size", "r_squared",
                       "largest_relative_error"});
    fit.num_points = static_cast<std::int32_t>(entry.at("num_points").as_int(1, 1 << 30));
    fit.smallest_size = read_number(entry.at("smallest_size"), 0, kLargest);
    fit.largest_size = read_number(entry.at("largest_size"), fit.smallest_size, kLargest);
    fit.r_squared = read_number(entry.at("r_squared"), -kLargest, 1);
    fit.largest_relative_error = read_number(entry.at("largest_relative_error"), 0, kLargest);
  }
  return {std::move(pieces), fit, reader.place()};
}

}  // namespace coterie::cost
