// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/traffic_prediction.hpp"

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

constexpr std::uint64_t kSizeBytes = 8;          // rows and entries, announced to every rank
constexpr std::uint64_t kBytesOfSlot = 2;        // per entry
constexpr std::uint64_t kBytesOfWeight = 4;      // per entry, per-device form only
constexpr std::uint64_t kBytesOfEntryCount = 1;  // per row, per-device form only

}  // namespace

HomeTraffic predict_home_traffic(const TokenRouting& routing, const PlacementIndex& index,
                                 const TrafficShape& shape) {
  const auto num_devices = static_cast<std::size_t>(index.num_devices());
  const bool is_classical = shape.options.form == ExchangeForm::kPerExpert;
  const auto hidden = static_cast<std::uint64_t>(shape.hidden);
  const auto row_bytes = hidden * static_cast<std::uint64_t>(kernels::size_of(shape.row_type));
  const auto partial_bytes =
      hidden * static_cast<std::uint64_t>(kernels::size_of(shape.options.partial_type));

  HomeTraffic traffic;
  traffic.rows_to.assign(num_devices, 0);
  traffic.metadata_to.assign(num_devices, kSizeBytes);
  traffic.dispatch_to.assign(num_devices, 0);
  traffic.combine_from.assign(num_devices, 0);
  std::vector<std::int64_t> last_token(num_devices, -1);
  for (std::int64_t token = 0; token < routing.num_tokens; ++token) {
    for (std::int32_t i = 0; i < routing.top_k; ++i) {
      if (routing.expert_ids[routing.pick(token, i)] < 0) {
        continue;
      }
      const auto device = static_cast<std::size_t>(routing.device(index, token, i));
      const bool is_new_row = is_classical || last_token[device] != token;
      last_token[device] = token;
      traffic.metadata_to[device] += kBytesOfSlot + (is_classical ? 0 : kBytesOfWeight);
      if (is_new_row) {
        traffic.metadata_to[device] += is_classical ? 0 : kBytesOfEntryCount;
        ++traffic.rows_to[device];
      }
    }
  }
  for (std::size_t device = 0; device < num_devices; ++device) {
    traffic.dispatch_to[device] = traffic.rows_to[device] * row_bytes;
    traffic.combine_from[device] = traffic.rows_to[device] * partial_bytes;
  }
  return traffic;
}

TrafficMatrix predict_traffic(std::span<const TokenRouting> routing_of_rank,
                              const PlacementIndex& index, const TrafficShape& shape) {
  const auto num_ranks = static_cast<std::size_t>(index.num_devices());
  COTERIE_CHECK(routing_of_rank.size() == num_ranks, routing_of_rank.size(), " ranks of ",
                num_ranks);
  TrafficMatrix traffic;
  for (auto* bytes : {&traffic.metadata, &traffic.dispatch, &traffic.combine}) {
    *bytes = Matrix<std::uint64_t>(num_ranks, num_ranks);
  }
  for (std::size_t home = 0; home < num_ranks; ++home) {
    const HomeTraffic of_home = predict_home_traffic(routing_of_rank[home], index, shape);
    for (std::size_t device = 0; device < num_ranks; ++device) {
      traffic.metadata(home, device) = of_home.metadata_to[device];
      traffic.dispatch(home, device) = of_home.dispatch_to[device];
      traffic.combine(device, home) = of_home.combine_from[device];
    }
  }
  return traffic;
}

std::uint64_t bytes_leaving(const Matrix<std::uint64_t>& bytes, std::int32_t rank) {
  std::uint64_t total = 0;
  const auto r = static_cast<std::size_t>(rank);
  for (std::size_t to = 0; to < bytes.columns(); ++to) {
    total += to == r ? 0 : bytes(r, to);
  }
  return total;
}

}  // namespace coterie::exchange
