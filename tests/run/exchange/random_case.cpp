// SPDX-License-Identifier: Apache-2.0
#include "tests/run/exchange/random_case.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "coterie/base/error.hpp"

namespace coterie::exchange {
namespace {

using kernels::DType;

placement::LayerPlacement random_placement(Random& random, std::int32_t num_experts,
                                           std::int32_t num_devices) {
  placement::LayerPlacement placement;
  placement.num_experts = num_experts;
  placement.experts_of_device.resize(static_cast<std::size_t>(num_devices));
  std::vector<std::int32_t> experts(static_cast<std::size_t>(num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  random.shuffle(std::span(experts));
  for (std::size_t i = 0; i < experts.size(); ++i) {
    // The first experts make sure that no device is empty; the others fall anywhere: uneven sizes.
    const std::uint64_t device = i < static_cast<std::size_t>(num_devices)
                                     ? i
                                     : random.below(static_cast<std::uint64_t>(num_devices));
    placement.experts_of_device[device].push_back(experts[i]);
  }
  const std::uint64_t num_copies = random.below(3) == 0 ? random.below(6) : 0;
  for (std::uint64_t copy = 0; copy < num_copies; ++copy) {
    auto& device =
        placement.experts_of_device[random.below(static_cast<std::uint64_t>(num_devices))];
    const auto expert =
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(num_experts)));
    if (std::find(device.begin(), device.end(), expert) == device.end()) {
      device.push_back(expert);
    }
  }
  for (auto& device : placement.experts_of_device) {
    std::sort(device.begin(), device.end());
  }
  return placement;
}

RankTokens random_tokens(Random& random, const placement::LayerPlacement& placement,
                         std::int32_t top_k, std::int64_t hidden, bool to_one_device) {
  RankTokens tokens;
  tokens.num_tokens = random.below(4) == 0 ? 0 : static_cast<std::int64_t>(random.below(20));
  tokens.top_k = top_k;
  tokens.hidden = hidden;
  const auto devices_of = placement.devices_of_expert();
  std::vector<std::int32_t> pool(static_cast<std::size_t>(placement.num_experts));
  std::iota(pool.begin(), pool.end(), 0);
  if (to_one_device) {
    pool = placement.experts_of_device.back();
  }
  for (std::int64_t token = 0; token < tokens.num_tokens; ++token) {
    random.shuffle(std::span(pool));
    const bool has_none = random.below(10) == 0;
    for (std::int32_t i = 0; i < top_k; ++i) {
      const bool is_none = has_none || i >= std::ssize(pool) || random.below(12) == 0;
      const std::int32_t expert = is_none ? -1 : pool[static_cast<std::size_t>(i)];
      tokens.ids.push_back(expert);
      // What stands beside -1 must not be read.
      tokens.weights.push_back(is_none ? std::bit_cast<float>(0x7FC00000U)
                                       : static_cast<float>(random.uniform()));
      if (is_none) {
        tokens.devices.push_back(-12345);
      } else {
        const auto& devices = devices_of[static_cast<std::size_t>(expert)];
        tokens.devices.push_back(
            to_one_device ? placement.num_devices() - 1
                          : devices[random.below(static_cast<std::uint64_t>(devices.size()))]);
      }
    }
  }
  for (std::int64_t i = 0; i < tokens.num_tokens * hidden; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(random.normal()));
    tokens.x_bf16.push_back(static_cast<std::uint16_t>(bits >> 16U));
    tokens.x.push_back(std::bit_cast<float>(bits & 0xFFFF0000U));
  }
  return tokens;
}

std::vector<std::byte> empty_result(const RankTokens& tokens, DType type) {
  // NaN, so that a row that nobody wrote shows.
  return std::vector<std::byte>(
      static_cast<std::size_t>(tokens.num_tokens * tokens.hidden * kernels::size_of(type)),
      std::byte{0xFF});
}

kernels::MatrixView view_of(std::vector<std::byte>& y, const RankTokens& tokens, DType type) {
  return {y.data(), tokens.num_tokens, tokens.hidden, tokens.hidden, type};
}

}  // namespace

kernels::ConstMatrixView RankTokens::view(DType type) const {
  const void* data = type == DType::kFloat32 ? static_cast<const void*>(x.data())
                                             : static_cast<const void*>(x_bf16.data());
  return {data, num_tokens, hidden, hidden, type};
}

RandomCase random_case(std::uint64_t seed) {
  Random random(seed, 17);
  const auto num_ranks = static_cast<std::int32_t>(1 + seed % 8);
  const auto num_experts = num_ranks + static_cast<std::int32_t>(random.below(14));
  const auto top_k = static_cast<std::int32_t>(1 + random.below(8));
  const auto hidden = static_cast<std::int64_t>(1 + random.below(19));
  const bool to_one_device = random.below(5) == 0;
  RandomCase made;
  made.placement = random_placement(random, num_experts, num_ranks);
  for (std::int32_t rank = 0; rank < num_ranks; ++rank) {
    made.ranks.push_back(random_tokens(random, made.placement, top_k, hidden, to_one_device));
  }
  made.description =
      join_message("seed ", seed, ": ", num_ranks, " ranks, ", num_experts, " experts, top-", top_k,
                   ", hidden ", hidden, to_one_device ? ", all to one device" : "");
  return made;
}

RankTokens joined(const std::vector<RankTokens>& ranks) {
  RankTokens all;
  all.top_k = ranks.front().top_k;
  all.hidden = ranks.front().hidden;
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const RankTokens& tokens : ranks) {
    all.num_tokens += tokens.num_tokens;
    append(all.ids, tokens.ids);
    append(all.weights, tokens.weights);
    append(all.devices, tokens.devices);
    append(all.x, tokens.x);
    append(all.x_bf16, tokens.x_bf16);
  }
  return all;
}

void toy_expert(std::int32_t expert, kernels::ConstMatrixView x, std::int64_t row,
                std::span<float> out) {
  for (std::size_t c = 0; c < out.size(); ++c) {
    const float value =
        x.type == DType::kFloat32
            ? x.row<float>(row)[c]
            : std::bit_cast<float>(static_cast<std::uint32_t>(x.row<std::uint16_t>(row)[c]) << 16U);
    out[c] = value * (0.3F + static_cast<float>(expert)) - 0.1F * static_cast<float>(c + 1);
  }
}

std::vector<std::byte> run_exchange(const RankTokens& tokens, const PlacementIndex& index,
                                    const ExchangeOptions& options, DType type,
                                    comm::Communicator* communicator) {
  Exchange exchange(index, options, communicator, "test");
  std::vector<std::byte> y = empty_result(tokens, type);
  exchange.dispatch(tokens.view(type), tokens.routing());
  for (const std::int32_t device : exchange.local_devices()) {
    for (std::int64_t part = 0; part < exchange.num_parts(device); ++part) {
      const DeviceWork work = exchange.work(device, part);
      std::vector<float> out(work.row_of.size() * static_cast<std::size_t>(tokens.hidden));
      for (std::int32_t slot = 0; slot < index.num_slots(device); ++slot) {
        const auto s = static_cast<std::size_t>(slot);
        for (std::int64_t r = work.expert_offsets[s]; r < work.expert_offsets[s + 1]; ++r) {
          toy_expert(index.experts_of(device)[s], work.rows,
                     work.row_of[static_cast<std::size_t>(r)],
                     std::span(out).subspan(static_cast<std::size_t>(r * tokens.hidden),
                                            static_cast<std::size_t>(tokens.hidden)));
        }
      }
      exchange.take_back(
          {out.data(), std::ssize(work.row_of), tokens.hidden, tokens.hidden, DType::kFloat32});
    }
  }
  exchange.combine(view_of(y, tokens, type));
  return y;
}

std::vector<std::byte> run_reference(const RankTokens& tokens, const PlacementIndex& index,
                                     const ExchangeOptions& options, DType type) {
  std::vector<std::byte> y = empty_result(tokens, type);
  reference_exchange(tokens.routing(), index, options, tokens.view(type), toy_expert,
                     view_of(y, tokens, type));
  return y;
}

}  // namespace coterie::exchange
