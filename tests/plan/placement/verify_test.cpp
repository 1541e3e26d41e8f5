// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

std::filesystem::path write_json(const std::string& name, const Json& json) {
  const auto path = std::filesystem::path(::testing::TempDir()) / name;
  write_json_file(path, json);
  return path;
}

Placement sample(const routing::ExpertSets& sets, std::int32_t num_redundant) {
  Placement placement;
  placement.algorithm = "coterie";
  placement.options.num_devices = 4;
  placement.options.num_redundant_experts = num_redundant;
  placement.options.load_cap = 1.5;
  placement.options.num_starts = 1;
  placement.fit_rows = "all";
  PlacedLayer layer;
  layer.layer = 3;
  layer.placement = place_layer(sets, "coterie", placement.options);
  layer.fit = measure_placement(layer.placement, sets);
  placement.layers = {layer};
  return placement;
}

TEST(Verify, CountsByBruteForceWhatTheSearchCounted) {
  Random random(51);
  for (const std::int32_t num_redundant : {0, 3, 12}) {
    const auto sets = testing::random_sets(random, 14, 4, 500);
    const Placement placement = sample(sets, num_redundant);
    const auto path = std::filesystem::path(::testing::TempDir()) / "verified.json";
    write_placement(path, placement);
    const VerifiedFile file = verify_placement_file(path);
    ASSERT_EQ(file.layers.size(), 1U);
    EXPECT_EQ(file.kind, "coterie");
    EXPECT_EQ(file.num_devices, 4);
    EXPECT_EQ(file.layers[0].layer, 3);
    EXPECT_LE(file.layers[0].most_slots - file.layers[0].fewest_slots, 1);
    BruteForceCount count(file.layers[0], 4);
    for (std::size_t s = 0; s < sets.num_sets(); ++s) {
      count.add(sets.set(s), sets.tokens[s]);
    }
    const VerifiedFigures counted = count.figures();
    const LayerFigures& stated = *placement.layers[0].fit;
    EXPECT_EQ(counted.num_tokens, stated.num_tokens);
    EXPECT_DOUBLE_EQ(counted.replicas, stated.replicas);
    EXPECT_DOUBLE_EQ(counted.load_imbalance, stated.load_imbalance);
    EXPECT_DOUBLE_EQ(counted.receive_imbalance, stated.receive_imbalance);
    EXPECT_DOUBLE_EQ(counted.bottleneck_replicas, stated.bottleneck_replicas);
  }
}

std::string refusal(const Json& json, std::int32_t num_devices = 0) {
  try {
    verify_placement_file(write_json("refused.json", json), num_devices);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

TEST(Verify, CatchesCorruptedFiles) {
  Random random(52);
  const auto sets = testing::random_sets(random, 8, 2, 100);
  const Json good = parse_json(format_placement(sample(sets, 0)), "sample");
  EXPECT_EQ(refusal(good), "accepted");
  const auto changed = [&](const std::function<void(Json&)>& change) {
    Json json = good;
    change(json);
    return refusal(json);
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  auto& map = "physical_to_logical_map";
  EXPECT_PRED2(has, changed([&](Json& j) { j[map][0][0] = j[map][0][2]; }), "is on no device");
  EXPECT_PRED2(has, changed([&](Json& j) { j[map][0][0] = j[map][0][1]; }), "layer 3");
  EXPECT_PRED2(has, changed([&](Json& j) { j[map][0][0] = 8; }), "not in [0, 7]");
  EXPECT_PRED2(has, changed([&](Json& j) { j[map][0][0] = "a"; }), "no whole number");
  EXPECT_PRED2(has, changed([&](Json& j) { j[map][0].erase(0); }), "do not run from 0");
  EXPECT_PRED2(has, changed([&](Json& j) { j[map] = Json::array(); }), "not one list a layer");
  EXPECT_PRED2(has, changed([&](Json& j) { j["device_slot_offsets"][0][1] = 0; }), "has no slot");
  EXPECT_PRED2(has, changed([&](Json& j) { j.erase("options"); }), "\"options\" is missing");
  EXPECT_PRED2(has, changed([&](Json& j) { j["version"] = 9; }), "version");
  EXPECT_PRED2(has, changed([&](Json& j) { j["format"] = "x"; }), "another format");
  EXPECT_PRED2(has, changed([&](Json& j) { j["figures"][0]["fit"].erase("replicas"); }),
               "\"replicas\"");
  EXPECT_PRED2(has, refusal(Json::array()), "no JSON object");
  EXPECT_PRED2(has, refusal(Json::object()), "neither");
  EXPECT_PRED2(has, refusal(good, 8), "for 4 devices, not 8");
}

TEST(Verify, ReadsSglangAndVllmFiles) {
  const Json sglang = {{"physical_to_logical_map", Json::parse("[[0,1,2,0,3,1]]")}};
  const auto path = write_json("sglang.json", sglang);
  const VerifiedFile file = verify_placement_file(path, 2);
  EXPECT_EQ(file.kind, "sglang");
  EXPECT_EQ(file.layers[0].num_experts, 4);
  EXPECT_EQ(file.layers[0].holders[0], (std::vector<std::int32_t>{0, 1}));
  EXPECT_NE(refusal(sglang).find("--devices"), std::string::npos);
  EXPECT_NE(refusal(sglang, 4).find("do not divide"), std::string::npos);
  const Json twice = {{"physical_to_logical_map", Json::parse("[[0,0,2,1,3,1]]")}};
  EXPECT_NE(refusal(twice, 2).find("holds expert 0 twice"), std::string::npos);

  const Json vllm = {{"expert_to_ep_rank", Json::parse("[0,1,1,0]")}};
  const VerifiedFile ranks = verify_placement_file(write_json("vllm.json", vllm));
  EXPECT_EQ(ranks.kind, "vllm");
  EXPECT_EQ(ranks.num_devices, 2);
  EXPECT_EQ(ranks.layers[0].holders[2], std::vector<std::int32_t>{1});
  const Json gap = {{"expert_to_ep_rank", Json::parse("[0,2,2,0]")}};
  EXPECT_NE(refusal(gap).find("device 1 holds no expert"), std::string::npos);
}

}  // namespace
}  // namespace coterie::placement
