// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/run/exchange/traffic_prediction.hpp"
#include "tests/run/exchange/random_case.hpp"

namespace coterie::exchange {
namespace {

using comm::Purpose;
using kernels::DType;

TEST(Traffic, PredictionEqualsTheCounterExactly) {
  for (std::uint64_t seed = 300; seed < 400; ++seed) {
    const RandomCase made = random_case(seed);
    const PlacementIndex index(made.placement);
    std::vector<TokenRouting> routings;
    for (const RankTokens& tokens : made.ranks) {
      routings.push_back(tokens.routing());
    }
    const DType type = seed % 2 == 0 ? DType::kBfloat16 : DType::kFloat32;
    for (const ExchangeForm form : {ExchangeForm::kPerDevice, ExchangeForm::kPerExpert}) {
      const ExchangeOptions options{form, seed % 3 == 0 ? DType::kBfloat16 : DType::kFloat32};
      SCOPED_TRACE(join_message(made.description, ", ", name_of(form)));
      const TrafficMatrix predicted =
          predict_traffic(routings, index, {made.ranks[0].hidden, type, options});
      comm::run_ranks(static_cast<int>(made.ranks.size()), [&](comm::Communicator& communicator) {
        const auto rank = communicator.rank();
        run_exchange(made.ranks[static_cast<std::size_t>(rank)], index, options, type,
                     &communicator);
        const comm::Traffic& traffic = communicator.traffic();
        EXPECT_EQ(traffic.sent_for(Purpose::kMetadata), bytes_leaving(predicted.metadata, rank));
        EXPECT_EQ(traffic.sent_for(Purpose::kDispatch), bytes_leaving(predicted.dispatch, rank));
        EXPECT_EQ(traffic.sent_for(Purpose::kCombine), bytes_leaving(predicted.combine, rank));
        EXPECT_EQ(traffic.sent_for(Purpose::kControl), 0U);
      });
    }
  }
}

TEST(Traffic, PerDeviceRowsAreFewer) {
  // One token on rank 0 with experts 2, 3 (device 1) and 0 (its own device), hidden 10, fp32.
  const PlacementIndex index(placement::contiguous_placement(4, 2));
  const RankTokens token{
      .num_tokens = 1, .top_k = 3, .ids = {2, 3, 0}, .weights = {0.5F, 0.25F, 0.25F}};
  const RankTokens none{.top_k = 3};
  const std::vector<TokenRouting> routings = {token.routing(), none.routing()};
  TrafficShape shape{10, DType::kFloat32, {}};
  const TrafficMatrix once = predict_traffic(routings, index, shape);
  EXPECT_EQ(once.dispatch(0, 1), 40U);
  EXPECT_EQ(once.combine(1, 0), 40U);
  EXPECT_EQ(once.metadata(0, 1), 8 + 2 * 6 + 1U);
  EXPECT_EQ(once.dispatch(0, 0), 40U);
  EXPECT_EQ(once.metadata(1, 0), 8U);
  EXPECT_EQ(bytes_leaving(once.dispatch, 0), 40U);
  shape.options.form = ExchangeForm::kPerExpert;
  shape.options.partial_type = DType::kBfloat16;
  const TrafficMatrix classical = predict_traffic(routings, index, shape);
  EXPECT_EQ(classical.dispatch(0, 1), 80U);
  EXPECT_EQ(classical.combine(1, 0), 40U);
  EXPECT_EQ(classical.metadata(0, 1), 8 + 2 * 2U);
}

TEST(Traffic, NeedsOneRoutingARank) {
  const PlacementIndex index(placement::contiguous_placement(4, 2));
  const std::vector<TokenRouting> one(1);
  EXPECT_THROW(predict_traffic(one, index, {1, DType::kFloat32, {}}), Error);
}

}  // namespace
}  // namespace coterie::exchange
