// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

LayerTrace layer_with(std::vector<TokenInfo> tokens, std::int32_t num_experts = 8) {
  Random random(1);
  LayerTrace layer;
  layer.num_experts = num_experts;
  layer.top_k = 2;
  layer.ids = random_ids(random, tokens.size(), 2, num_experts);
  layer.tokens = std::make_shared<const std::vector<TokenInfo>>(std::move(tokens));
  return layer;
}

/// Three sequences of domain 0 (rows 0-11), one of domain 1 (rows 12-15).
LayerTrace four_sequences() {
  std::vector<TokenInfo> tokens;
  for (std::uint32_t r = 0; r < 16; ++r) {
    tokens.push_back({r / 4, r % 4, static_cast<std::uint16_t>(r / 12), 0});
  }
  return layer_with(std::move(tokens));
}

TEST(Selection, FitAndHeldOutPartTheRows) {
  auto layer = four_sequences();
  for (const Split split : {Split::kTime, Split::kSequence, Split::kParity}) {
    for (const double share : {0.1, 0.5, 0.75, 0.9}) {
      Selection selection;
      selection.split = split;
      selection.fit_share = share;
      selection.part = Part::kFit;
      auto rows = select_rows(layer, selection);
      selection.part = Part::kHeldOut;
      const auto held_out = select_rows(layer, selection);
      rows.insert(rows.end(), held_out.begin(), held_out.end());
      std::sort(rows.begin(), rows.end());
      EXPECT_EQ(rows, select_rows(layer, {}));
      EXPECT_EQ(rows.size(), 16U);
    }
  }
}

TEST(Selection, TimeTakesTheFirstRowsOfEachDomain) {
  Selection selection{.part = Part::kFit, .split = Split::kTime, .fit_share = 0.5};
  EXPECT_EQ(select_rows(four_sequences(), selection),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 12, 13}));
}

TEST(Selection, SequencesStayWhole) {
  Selection selection{.part = Part::kFit, .split = Split::kSequence, .fit_share = 0.5};
  EXPECT_EQ(select_rows(four_sequences(), selection),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(Selection, ParityTakesEvenPositions) {
  Selection selection{.part = Part::kHeldOut, .split = Split::kParity, .domain = 1};
  EXPECT_EQ(select_rows(four_sequences(), selection), (std::vector<std::uint32_t>{13, 15}));
}

TEST(Selection, PaddingAndWarmUpAreDroppedAndCounted) {
  std::vector<TokenInfo> tokens(10);
  tokens[0].flags = kWarmUp;
  tokens[1].flags = kWarmUp;
  tokens[9].flags = kPadding | kWarmUp;
  LayerTrace layer = layer_with(tokens);
  layer.ids[10] = layer.ids[11] = kNoExpert;
  const DroppedRows dropped = count_dropped(layer);
  EXPECT_EQ(dropped, (DroppedRows{.padding = 1, .warm_up = 2, .without_expert = 1}));
  // Tokens that count x k, exactly (6 of 10 rows).
  EXPECT_EQ(select_sets(layer).num_picks(), 12U);
  EXPECT_EQ(select_rows(layer, {}), (std::vector<std::uint32_t>{2, 3, 4, 5, 6, 7, 8}));
}

TEST(Selection, SampleIsOfThatSizeAndRepeatable) {
  const LayerTrace layer = layer_with(std::vector<TokenInfo>(1000));
  Selection selection{.max_rows = 100, .seed = 5};
  const auto rows = select_rows(layer, selection);
  EXPECT_EQ(rows.size(), 100U);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  EXPECT_EQ(std::set<std::uint32_t>(rows.begin(), rows.end()).size(), 100U);
  EXPECT_EQ(select_rows(layer, selection), rows);
  selection.seed = 6;
  EXPECT_NE(select_rows(layer, selection), rows);
  EXPECT_GT(rows.back(), 900U);
  EXPECT_LT(rows.front(), 100U);
  selection.max_rows = 5000;
  EXPECT_EQ(select_rows(layer, selection).size(), 1000U);
}

TEST(Selection, SetsAreThoseOfTheRows) {
  const LayerTrace layer = four_sequences();
  Selection selection{.part = Part::kFit, .split = Split::kTime, .fit_share = 0.25, .domain = 1};
  EXPECT_EQ(select_sets(layer, selection), make_expert_sets(layer.row(12), 2, 8));
}

TEST(Selection, CountedSetsAreNotParted) {
  LayerTrace layer;
  layer.num_experts = 4;
  layer.top_k = 2;
  const std::vector<std::uint16_t> ids = {0, 1, 2, 3};
  layer.counts = make_expert_sets(ids, 2, 4);
  EXPECT_EQ(select_sets(layer, {.part = Part::kFit}), *layer.counts);
  EXPECT_EQ(select_sets(layer, {.part = Part::kHeldOut}).num_sets(), 0U);
  EXPECT_EQ(select_rows(layer, {}).size(), 0U);
}

TEST(Selection, BadShareIsRefused) {
  expect_refused([] { select_rows(four_sequences(), {.fit_share = 1.0}); }, {"share", "1"});
}

}  // namespace
}  // namespace coterie::routing
