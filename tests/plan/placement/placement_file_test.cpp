// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

std::filesystem::path scratch(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / name;
}

Placement sample() {
  Placement placement;
  placement.algorithm = "coterie";
  placement.options.num_devices = 3;
  placement.options.num_redundant_experts = 1;
  placement.options.load_cap = 1.25;
  placement.options.seed = 18446744073709551615ULL;
  placement.model_fingerprint = "0123456789abcdef";
  placement.trace_fingerprint = "fedcba9876543210";
  PlacedLayer first;
  first.layer = 1;
  first.placement = {5, {{0, 2}, {1, 2}, {3, 4}}, {0, 70000, 3}};
  first.fit = LayerFigures{100, 1.5, 1.75, 1.1, 1.2};
  PlacedLayer second;
  second.layer = 4;
  second.placement = {5, {{0, 4}, {1, 3}, {0, 2}}, {}};
  second.held_out = LayerFigures{90, 1.0 / 3, 1.75, 1.1, 1.2};
  placement.layers = {first, second};
  return placement;
}

TEST(PlacementFile, RoundTrips) {
  const auto path = scratch("round_trip.json");
  write_placement(path, sample());
  EXPECT_EQ(read_placement(path), sample());
}

TEST(PlacementFile, HoldsTheMapThatSglangReads) {
  const Json file = parse_json(format_placement(sample()), "sample");
  EXPECT_EQ(file["physical_to_logical_map"], Json::parse("[[0,2,1,2,3,4],[0,4,1,3,0,2]]"));
  EXPECT_EQ(file["device_slot_offsets"], Json::parse("[[0,2,4,6],[0,2,4,6]]"));
}

TEST(PlacementFile, Finds) {
  const Placement placement = sample();
  EXPECT_EQ(placement.find(4), &placement.layers[1].placement);
  EXPECT_EQ(placement.find(2), nullptr);
}

/// Changes one thing in a good file and returns the error that reading gives.
std::string refusal(const std::function<void(Json&)>& change) {
  Json file = parse_json(format_placement(sample()), "sample");
  change(file);
  const auto path = scratch("changed.json");
  write_json_file(path, file);
  try {
    read_placement(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  return "accepted";
}

#define EXPECT_REFUSED(text, ...)                                                \
  EXPECT_NE(refusal([](Json& f) { __VA_ARGS__; }).find(text), std::string::npos) \
      << refusal([](Json& f) { __VA_ARGS__; })

TEST(PlacementFile, RefusesEveryBreachWithItsPlace) {
  EXPECT_REFUSED("\"algorithm\" is missing", f.erase("algorithm"));
  EXPECT_REFUSED("/format", f["format"] = "other");
  EXPECT_REFUSED("/version", f["version"] = 2);
  EXPECT_REFUSED("/physical_to_logical_map/0/3", f["physical_to_logical_map"][0][3] = 5);
  EXPECT_REFUSED("/physical_to_logical_map/0/3", f["physical_to_logical_map"][0][3] = -1);
  EXPECT_REFUSED("/physical_to_logical_map/0/3", f["physical_to_logical_map"][0][3] = "2");
  EXPECT_REFUSED("/physical_to_logical_map/0/3", f["physical_to_logical_map"][0][3] = 1.5);
  EXPECT_REFUSED("/physical_to_logical_map/1/1", f["physical_to_logical_map"][1][1] = 0);
  EXPECT_REFUSED("layer 4: expert 3 has no device", f["physical_to_logical_map"][1][3] = 4);
  EXPECT_REFUSED("/physical_to_logical_map", f["physical_to_logical_map"].erase(1));
  EXPECT_REFUSED("/device_slot_offsets/0", f["device_slot_offsets"][0] = Json::parse("[0,2,4]"));
  EXPECT_REFUSED("/device_slot_offsets/0/2", f["device_slot_offsets"][0][2] = 2);
  EXPECT_REFUSED("/device_slot_offsets/0", f["device_slot_offsets"][0][3] = 5);
  EXPECT_REFUSED("/device_slot_offsets/0", f["device_slot_offsets"][0][0] = 1);
  EXPECT_REFUSED("/device_prices/0", f["device_prices"][0] = Json::parse("[1]"));
  EXPECT_REFUSED("/layers/1", f["layers"][1] = -3);
  EXPECT_REFUSED("layers do not ascend", f["layers"][1] = 1);
  EXPECT_REFUSED("/options/objective", f["options"]["objective"] = "median");
  EXPECT_REFUSED("/options/seed", f["options"]["seed"] = -1);
  EXPECT_REFUSED("3 devices do not divide among 2 nodes", f["options"]["num_nodes"] = 2);
  EXPECT_REFUSED("/figures/0/fit/replicas", f["figures"][0]["fit"]["replicas"] = "x");
  EXPECT_REFUSED("no layer is placed", f["layers"] = Json::array();
                 f["physical_to_logical_map"] = Json::array();
                 f["device_slot_offsets"] = Json::array());
}

TEST(PlacementFile, RefusesBrokenFiles) {
  EXPECT_THROW(read_placement(scratch("absent.json")), Error);
  const auto path = scratch("cut.json");
  const std::string text = format_placement(sample());
  for (std::size_t length = 0; length + 1 < text.size(); length += 37) {
    write_text_file(path, text.substr(0, length));
    EXPECT_THROW(read_placement(path), Error) << length;
  }
}

TEST(PlacementFile, RefusesToWriteABrokenPlacement) {
  Placement placement = sample();
  placement.layers[1].placement.experts_of_device[1] = {3, 1};
  const auto path = scratch("never.json");
  EXPECT_THROW(write_placement(path, placement), Error);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace coterie::placement
