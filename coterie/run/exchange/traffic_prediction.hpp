// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coterie/base/matrix.hpp"
#include "coterie/run/exchange/exchange_form.hpp"
#include "coterie/run/exchange/token_routing.hpp"

namespace coterie::exchange {

/// What, beside routing and placement, decides how many bytes an exchange moves.
struct TrafficShape {
  std::int64_t hidden = 0;
  kernels::DType row_type = kernels::DType::kFloat32;  ///< of the activations that travel out
  ExchangeOptions options;
};

/// Bytes that the tokens of one home rank cause, by device. The home's own device is included,
/// though these bytes stay in place.
struct HomeTraffic {
  std::vector<std::uint64_t> rows_to;       ///< [num_devices] rows, not bytes
  std::vector<std::uint64_t> metadata_to;   ///< [num_devices] sizes included
  std::vector<std::uint64_t> dispatch_to;   ///< [num_devices]
  std::vector<std::uint64_t> combine_from;  ///< [num_devices]

  bool operator==(const HomeTraffic&) const = default;
};

/// Counts from ids and placement alone, without making any list. Exact. The routing must have been
/// checked.
HomeTraffic predict_home_traffic(const TokenRouting& routing, const PlacementIndex& index,
                                 const TrafficShape& shape);

/// Bytes between ranks: (sender, receiver). The diagonal stays in place and crosses no link.
struct TrafficMatrix {
  Matrix<std::uint64_t> metadata;
  Matrix<std::uint64_t> dispatch;
  Matrix<std::uint64_t> combine;
};

/// The traffic of one exchange among all ranks: `routing_of_rank[r]` holds the tokens of rank r,
/// which is device r. What rank r's traffic counter shows is the sum of row r without its diagonal.
TrafficMatrix predict_traffic(std::span<const TokenRouting> routing_of_rank,
                              const PlacementIndex& index, const TrafficShape& shape);

/// Sum of row `rank` without the diagonal: bytes that leave this rank.
std::uint64_t bytes_leaving(const Matrix<std::uint64_t>& bytes, std::int32_t rank);

}  // namespace coterie::exchange
