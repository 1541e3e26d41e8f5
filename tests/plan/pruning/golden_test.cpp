// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "tests/folders.hpp"
#include "tests/plan/pruning/random_tokens.hpp"

namespace coterie::pruning {
namespace {

/// What every policy makes of the same tokens, bit for bit: other implementations of the policy are
/// held against this file too. COTERIE_UPDATE_GOLDEN=1 writes it anew.
Json golden_document() {
  Random random(2026);
  const auto placement = testing::random_placement(random, 16, 4);
  SimilarityProfile profile(16);
  std::vector<testing::Token> tokens;
  for (int t = 0; t < 24; ++t) {
    tokens.push_back(testing::random_token(random, 16, 4, t % 3 == 0 ? 3 : 0));
    profile.add(tokens.back().scores);
  }
  const SimilarityTable table = profile.table(Measure::kCentredCosine);
  Json document = {{"experts_of_device", placement.experts_of_device}};
  for (const testing::Token& token : tokens) {
    document["scores"].push_back(token.scores);
    document["ids"].push_back(token.ids);
  }
  for (const DeviceChoice choice : {DeviceChoice::kFirstSeen, DeviceChoice::kKeptMass}) {
    for (const Replacement replacement :
         {Replacement::kRouterScore, Replacement::kSimilarity, Replacement::kNone}) {
      for (const Weights weights : {Weights::kOwnScore, Weights::kKeepSum}) {
        PruningOptions options;
        options.device_choice = choice;
        options.replacement = replacement;
        options.weights = weights;
        options.budget.max_devices = 2;
        Json entry = {{"options", to_json(options)}};
        const LayerPruner pruner(placement, options, options.budget, &table);
        for (const testing::Token& token : tokens) {
          auto ids = token.ids;
          auto kept = token.weights;
          pruner.prune({token.scores, token.scores}, ids, kept);
          entry["ids"].push_back(ids);
          entry["weights"].push_back(kept);
        }
        document["policies"].push_back(std::move(entry));
      }
    }
  }
  return document;
}

TEST(PruningGolden, EveryPolicyKeepsItsBits) {
  const auto path = tests::source_dir() / "tests/golden/pruning.json";
  const std::string text = format_json(golden_document());
  if (std::getenv("COTERIE_UPDATE_GOLDEN") != nullptr) {
    write_text_file(path, text);
  }
  EXPECT_EQ(read_text_file(path), text);
}

}  // namespace
}  // namespace coterie::pruning
