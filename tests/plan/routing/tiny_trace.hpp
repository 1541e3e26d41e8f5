// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::routing {

/// A folder of its own for each test, removed afterwards.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string(info->test_suite_name()) + "_" + info->name() + "_" +
               std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

/// [num_tokens, top_k] random rows of distinct ids; about one id in `one_none_in` is missing.
inline std::vector<std::uint16_t> random_ids(Random& random, std::size_t num_tokens,
                                             std::int32_t top_k, std::int32_t num_experts,
                                             std::uint64_t one_none_in = 0) {
  std::vector<std::uint16_t> all(static_cast<std::size_t>(num_experts));
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::vector<std::uint16_t> ids;
  for (std::size_t t = 0; t < num_tokens; ++t) {
    random.shuffle(std::span(all));
    for (std::size_t i = 0; i < static_cast<std::size_t>(top_k); ++i) {
      const bool none = one_none_in > 0 && random.below(one_none_in) == 0;
      ids.push_back(none ? kNoExpert : all[i]);
    }
  }
  return ids;
}

struct TinyShape {
  std::int32_t num_experts = 8;
  std::int32_t top_k = 2;
  std::vector<std::int32_t> layers = {1, 3};
  std::size_t num_tokens = 13;
  bool has_weights = true;
  bool shared_tokens = true;
};

/// A random trace with two domains, sequences of five tokens, and each flag once.
inline std::unique_ptr<MemoryTrace> tiny_trace(const TinyShape& shape = {},
                                               std::uint64_t seed = 1) {
  Random random(seed);
  TraceHeader header;
  header.model_type = "olmoe";
  header.model_fingerprint = "00ff";
  header.num_experts = shape.num_experts;
  header.top_k = shape.top_k;
  header.layers = shape.layers;
  header.domains = {"code", "novel \"x\""};
  header.source = "a test";
  header.has_weights = shape.has_weights;
  header.shared_tokens = shape.shared_tokens;
  std::vector<LayerTrace> layers;
  std::shared_ptr<const std::vector<TokenInfo>> table;
  for (std::size_t slot = 0; slot < shape.layers.size(); ++slot) {
    LayerTrace layer;
    layer.layer = shape.layers[slot];
    layer.num_experts = shape.num_experts;
    layer.top_k = shape.top_k;
    const std::size_t rows = shape.shared_tokens ? shape.num_tokens : shape.num_tokens + slot;
    if (!table || !shape.shared_tokens) {
      std::vector<TokenInfo> tokens(rows);
      for (std::uint32_t r = 0; r < rows; ++r) {
        tokens[r] = {r / 5, r % 5, static_cast<std::uint16_t>(r / 5 % 2), 0};
      }
      if (rows > 3) {
        tokens[0].flags = kWarmUp;
        tokens[rows - 1].flags = kPadding;
      }
      table = std::make_shared<const std::vector<TokenInfo>>(std::move(tokens));
    }
    layer.tokens = table;
    layer.ids = random_ids(random, rows, shape.top_k, shape.num_experts, 9);
    for (std::size_t i = 0; shape.has_weights && i < layer.ids.size(); ++i) {
      layer.weights.push_back(static_cast<float>(random.uniform()));
    }
    layers.push_back(std::move(layer));
  }
  return std::make_unique<MemoryTrace>(std::move(header), std::move(layers), "tiny");
}

/// Both traces say the same, layer by layer, weights included.
inline void expect_equal(const Trace& a, const Trace& b) {
  ASSERT_EQ(a.header(), b.header());
  for (std::size_t slot = 0; slot < a.header().layers.size(); ++slot) {
    EXPECT_EQ(a.num_rows(slot), b.num_rows(slot));
    EXPECT_TRUE(a.layer(slot, true) == b.layer(slot, true)) << "slot " << slot;
  }
}

/// Runs `action`, which must throw an Error whose text holds every part; returns the text.
template <typename Action>
std::string expect_refused(const Action& action, const std::vector<std::string>& parts,
                           ErrorCode code = ErrorCode::kBadInput) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), std::string(name_of(code))) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "no \"" << part << "\" in: " << error.what();
    }
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace coterie::routing
