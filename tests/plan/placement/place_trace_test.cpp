// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "tests/folders.hpp"
#include "tests/plan/placement/routing_data.hpp"

namespace coterie::placement {
namespace {

/// A made trace of `num_layers` layers of 16 experts, top-3; layer numbers 1, 3, 5, ...
std::unique_ptr<routing::Trace> made_trace(std::int32_t num_layers, std::size_t num_rows) {
  routing::TraceHeader header;
  header.num_experts = 16;
  header.top_k = 3;
  header.model_fingerprint = "00ff";
  header.domains = {"made"};
  auto tokens = std::make_shared<std::vector<routing::TokenInfo>>(num_rows);
  for (std::size_t r = 0; r < num_rows; ++r) {
    (*tokens)[r].position = static_cast<std::uint32_t>(r);
  }
  std::vector<routing::LayerTrace> layers;
  Random random(61);
  for (std::int32_t i = 0; i < num_layers; ++i) {
    header.layers.push_back(2 * i + 1);
    routing::LayerTrace layer;
    layer.layer = 2 * i + 1;
    layer.num_experts = 16;
    layer.top_k = 3;
    for (std::size_t r = 0; r < num_rows; ++r) {
      const auto base = static_cast<std::uint16_t>(4 * random.below(4));
      const auto at = static_cast<std::uint16_t>(random.below(4));
      layer.ids.push_back(static_cast<std::uint16_t>((base + at) * 5 % 16));
      layer.ids.push_back(static_cast<std::uint16_t>((base + (at + 1) % 4) * 5 % 16));
      layer.ids.push_back(static_cast<std::uint16_t>((base + (at + 2) % 4) * 5 % 16));
    }
    layer.tokens = tokens;
    layers.push_back(std::move(layer));
  }
  return std::make_unique<routing::MemoryTrace>(header, std::move(layers), "made");
}

PlacementOptions small_options() {
  PlacementOptions options;
  options.num_devices = 4;
  options.num_starts = 2;
  return options;
}

TEST(PlaceTrace, PlacesEveryLayerAndFindsTheHiddenGroups) {
  const auto trace = made_trace(3, 400);
  PlacementOptions options = small_options();
  options.load_cap.reset();
  const auto placed = place_trace(*trace, "coterie", options, FitRows::kEven);
  ASSERT_EQ(placed.placement.layers.size(), 3U);
  EXPECT_EQ(placed.placement.fit_rows, "even-rows");
  EXPECT_EQ(placed.placement.model_fingerprint, "00ff");
  for (std::size_t i = 0; i < 3; ++i) {
    const PlacedLayer& layer = placed.placement.layers[i];
    EXPECT_EQ(layer.layer, static_cast<std::int32_t>(2 * i + 1));
    EXPECT_EQ(layer.fit->num_tokens, 200U);
    EXPECT_EQ(layer.held_out->num_tokens, 200U);
    EXPECT_EQ(layer.fit->replicas, 1);  // groups of four are devices
    EXPECT_EQ(layer.held_out->replicas, 1);
    EXPECT_GT(placed.comparisons[i].contiguous_fit.replicas, 2);
    EXPECT_GT(placed.comparisons[i].bounds.random, 2);
  }
}

TEST(PlaceTrace, IsTheSameOnAnyNumberOfThreads) {
  const auto trace = made_trace(5, 300);
  PlacementOptions options = small_options();
  const auto one = place_trace(*trace, "coterie", options, FitRows::kAll);
  for (const std::int32_t threads : {2, 4, 16}) {
    options.num_threads = threads;
    const auto many = place_trace(*trace, "coterie", options, FitRows::kAll);
    EXPECT_EQ(format_placement(many.placement), format_placement(one.placement));
  }
}

TEST(PlaceTrace, FingerprintTellsRowsApart) {
  const auto trace = made_trace(1, 300);
  const auto all = place_trace(*trace, "occult", small_options(), FitRows::kAll);
  const auto even = place_trace(*trace, "occult", small_options(), FitRows::kEven);
  EXPECT_NE(all.placement.trace_fingerprint, even.placement.trace_fingerprint);
  EXPECT_FALSE(all.placement.layers[0].held_out.has_value());
}

TEST(PlaceTrace, RefusesUnknownNamesAndEmptyTraces) {
  EXPECT_THROW(place_trace(*made_trace(1, 10), "best", small_options(), FitRows::kAll), Error);
  EXPECT_THROW(fit_rows_of("odd"), Error);
  EXPECT_EQ(fit_rows_of("sequences"), FitRows::kSequences);
  EXPECT_THROW(place_trace(*made_trace(1, 0), "occult", small_options(), FitRows::kAll), Error);
}

/// Files that every algorithm must go on to give for seed 7. COTERIE_UPDATE_GOLDEN=1 writes them
/// anew, for a change of algorithm that is meant.
TEST(PlaceTrace, GoldenFiles) {
  const auto trace = made_trace(2, 200);
  PlacementOptions options = small_options();
  options.seed = 7;
  const auto folder = tests::source_dir() / "tests/plan/placement/golden";
  const auto check = [&](const std::string& name, std::string_view algorithm) {
    const auto placed = place_trace(*trace, algorithm, options, FitRows::kEven);
    const std::string text = format_placement(placed.placement);
    const auto path = folder / (name + ".json");
    if (std::getenv("COTERIE_UPDATE_GOLDEN") != nullptr) {
      std::filesystem::create_directories(folder);
      write_text_file(path, text);
    }
    EXPECT_EQ(text, read_text_file(path)) << name;
  };
  for (const Algorithm& algorithm : algorithms()) {
    check(std::string(algorithm.name), algorithm.name);
  }
  options.num_redundant_experts = 3;
  options.num_nodes = 2;
  check("coterie_nodes_copies", "coterie");
}

}  // namespace
}  // namespace coterie::placement
