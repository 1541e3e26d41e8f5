// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/run/comm/comm.hpp"
#include "coterie/run/exchange/exchange.hpp"

namespace coterie::exchange {

/// The tokens of one rank with their routing and inputs, owned.
struct RankTokens {
  std::int64_t num_tokens = 0;
  std::int32_t top_k = 0;
  std::vector<std::int32_t> ids = {};
  std::vector<float> weights = {};
  std::vector<std::int32_t> devices = {};
  std::int64_t hidden = 0;
  std::vector<std::uint16_t> x_bf16 = {};
  std::vector<float> x = {};  ///< the same values

  [[nodiscard]] TokenRouting routing() const { return {num_tokens, top_k, ids, weights, devices}; }
  [[nodiscard]] kernels::ConstMatrixView view(kernels::DType type) const;
};

/// One random problem: a placement and what each rank holds.
struct RandomCase {
  placement::LayerPlacement placement;
  std::vector<RankTokens> ranks;
  std::string description;
};

/// Anything that may happen: 1 to 8 ranks, k 1 to 8, experts that do not divide, copies, ranks
/// without tokens, ids of -1, tokens without any expert, all tokens to one device. Fixed by `seed`.
RandomCase random_case(std::uint64_t seed);

/// The tokens of all ranks as one rank would hold them.
RankTokens joined(const std::vector<RankTokens>& ranks);

/// A made-up expert: row-wise, so independent of batches, and different for each expert and column.
void toy_expert(std::int32_t expert, kernels::ConstMatrixView x, std::int64_t row,
                std::span<float> out);

/// Results of one rank's tokens by an Exchange with toy experts, rows of y as raw bytes.
std::vector<std::byte> run_exchange(const RankTokens& tokens, const PlacementIndex& index,
                                    const ExchangeOptions& options, kernels::DType type,
                                    comm::Communicator* communicator);
/// The same by reference_exchange.
std::vector<std::byte> run_reference(const RankTokens& tokens, const PlacementIndex& index,
                                     const ExchangeOptions& options, kernels::DType type);

}  // namespace coterie::exchange
