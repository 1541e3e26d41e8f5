// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/token_routing.hpp"

#include <gtest/gtest.h>

#include "tests/run/exchange/random_case.hpp"

namespace coterie::exchange {
namespace {

/// The message with which a routing is refused; "" if it is accepted.
std::string refusal(const RankTokens& tokens, const PlacementIndex& index) {
  try {
    check_token_routing(tokens.routing(), index, "layer 3");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
}

RankTokens two_tokens() {
  return {.num_tokens = 2,
          .top_k = 2,
          .ids = {0, 3, -1, 1},
          .weights = {0.5F, 0.5F, 0.0F, 1.0F},
          .devices = {0, 1, -1, 1}};
}

const PlacementIndex& index_with_copies() {
  // Expert 1 has copies on both devices.
  static const PlacementIndex index({4, {{0, 1}, {1, 2, 3}}, {}});
  return index;
}

TEST(TokenRouting, AcceptsCopiesAndNoExpert) {
  EXPECT_EQ(refusal(two_tokens(), index_with_copies()), "");
  RankTokens without_devices = two_tokens();
  without_devices.devices.clear();
  EXPECT_EQ(refusal(without_devices, index_with_copies()), "");
  EXPECT_EQ(without_devices.routing().device(index_with_copies(), 1, 1), 0);
  EXPECT_EQ(refusal(RankTokens{.top_k = 2}, index_with_copies()), "");
}

TEST(TokenRouting, EveryBreachNamesTokenAndValue) {
  RankTokens bad = two_tokens();
  bad.ids[3] = 4;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: token 1: expert id 4 is not in [-1, 4)");
  bad.ids[3] = -2;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: token 1: expert id -2 is not in [-1, 4)");
  bad = two_tokens();
  bad.ids[1] = 0;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: token 0 has expert 0 twice");
  bad = two_tokens();
  bad.devices[0] = 1;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: token 0: device 1 does not hold expert 0");
  bad.devices[0] = 2;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: token 0: device 2 is not in [0, 2)");
  bad.devices[0] = -1;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: token 0: device -1 is not in [0, 2)");
}

TEST(TokenRouting, ArraysOfOtherLengthsAreRefused) {
  RankTokens bad = two_tokens();
  bad.num_tokens = 3;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: 4 expert ids, not 6");
  bad = two_tokens();
  bad.weights.pop_back();
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: 3 routing weights, not 4");
  bad = two_tokens();
  bad.devices.pop_back();
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: 3 devices of picks, not 4");
  bad = two_tokens();
  bad.top_k = 0;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: top_k is 0, not in [1, 255]");
  bad.top_k = 256;
  EXPECT_EQ(refusal(bad, index_with_copies()), "layer 3: top_k is 256, not in [1, 255]");
  bad = two_tokens();
  bad.num_tokens = std::int64_t{1} << 30;
  EXPECT_NE(refusal(bad, index_with_copies()).find("more than 2^31"), std::string::npos);
}

TEST(PlacementIndex, KnowsSlotsAndDevices) {
  const PlacementIndex& index = index_with_copies();
  EXPECT_EQ(index.num_slots(0), 2);
  EXPECT_EQ(index.num_slots(1), 3);
  EXPECT_EQ(index.slot_of(0, 1), 1);
  EXPECT_EQ(index.slot_of(1, 1), 0);
  EXPECT_EQ(index.slot_of(0, 2), -1);
  EXPECT_EQ(index.first_device_of(1), 0);
  EXPECT_EQ(index.first_device_of(3), 1);
  EXPECT_THROW(PlacementIndex({4, {{0, 1}, {2}}, {}}), Error);
}

}  // namespace
}  // namespace coterie::exchange
