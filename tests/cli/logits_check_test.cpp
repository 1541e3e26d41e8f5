// SPDX-License-Identifier: Apache-2.0
#include "cli/logits_check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tests/models/scratch_folder.hpp"
#include "tests/models/tiny_model.hpp"

namespace coterie::cli {
namespace {

/// Two ranks that compute what one process computes, until a test spoils it.
class LogitsCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    models::write_tiny_model(folder_.path(), models::TinyModel{});
    models::Decoder decoder(folder_.path());
    for (std::size_t r = 0; r < 2; ++r) {
      StepOutput output;
      output.logits = decoder.logits(sequences_of(r), [&](const models::LayerRouting& routing) {
        output.routing.add(routing);
      });
      ranks_.push_back(std::move(output));
    }
  }

  [[nodiscard]] Sequences sequences_of(std::size_t rank) const {
    return rank == 0 ? Sequences{step_[0], step_[2]} : Sequences{step_[1]};
  }

  LogitsCheck compare() {
    OneProcessCheck check(folder_.path(), {}, {});
    std::vector<std::vector<std::byte>> parts;
    for (const StepOutput& rank : ranks_) {
      parts.push_back(rank.pack());
    }
    LogitsCheck result;
    check.compare(step_, 10, parts, result);
    return result;
  }

  /// Replaces the last expert of a token of rank 0 in a layer by one that it does not have.
  void flip(std::size_t layer, std::size_t row, float weight_factor) {
    RoutingOfStep& routing = ranks_[0].routing;
    const auto k = static_cast<std::size_t>(routing.top_k);
    const auto ids = std::span(routing.ids[layer]).subspan(row * k, k);
    std::int32_t other = 0;
    while (std::ranges::find(ids, other) != ids.end()) {
      ++other;
    }
    ids[k - 1] = other;
    routing.weights[layer][row * k + k - 1] *= weight_factor;
  }

  models::ScratchFolder folder_;
  Sequences step_ = {{3, 1, 4, 1, 5}, {9, 2, 6}, {5, 3, 5, 8, 9, 7}};
  std::vector<StepOutput> ranks_;
};

TEST_F(LogitsCheckTest, EqualOutputsPass) {
  const LogitsCheck check = compare();
  EXPECT_TRUE(check.same_placement_bit_equal);
  EXPECT_TRUE(check.runs_bit_identical);
  EXPECT_EQ(check.max_difference, 0);
  EXPECT_GT(check.max_abs_logit, 0);
  EXPECT_TRUE(check.flips.empty());
}

TEST_F(LogitsCheckTest, OneBitOfOneLogitIsSeen) {
  float& logit = ranks_[0].logits(6, 2);  // sequence 2, position 1
  logit = std::nextafter(logit, 1000.0F);
  const LogitsCheck check = compare();
  EXPECT_FALSE(check.same_placement_bit_equal);
  EXPECT_GT(check.max_difference, 0);
  EXPECT_EQ(check.max_difference, check.max_difference_before_flips);
}

TEST_F(LogitsCheckTest, UnrepeatedRunIsSeen) {
  ranks_[1].is_repeated = false;
  EXPECT_FALSE(compare().runs_bit_identical);
}

TEST_F(LogitsCheckTest, FlipsAreListedAndWhatFollowsIsToldApart) {
  flip(0, 7, 0.99999F);            // layer 0, sequence 2, position 2
  flip(1, 6, 0.5F);                // layer 1, sequence 2, position 1: no flip came before it there
  flip(2, 9, 1.0F);                // layer 2, sequence 2, position 4: may follow
  ranks_[0].logits(8, 0) += 1000;  // sequence 2, position 3: the flips may be the cause
  const LogitsCheck check = compare();
  ASSERT_EQ(check.flips.size(), 3U);
  EXPECT_EQ(check.flips[0].sequence, 12);
  EXPECT_EQ(check.flips[0].position, 2);
  EXPECT_NEAR(check.flips[0].margin, 1e-5, 2e-6);
  EXPECT_FALSE(check.flips[0].follows);
  EXPECT_EQ(check.flips[1].layer, 1);
  EXPECT_NEAR(check.flips[1].margin, 0.5, 1e-6);
  EXPECT_FALSE(check.flips[1].follows);
  EXPECT_TRUE(check.flips[2].follows);
  EXPECT_GT(check.max_difference, 900);
  EXPECT_EQ(check.max_difference_before_flips, 0);
}

TEST_F(LogitsCheckTest, ComplaintsSayWhatFails) {
  ParallelRunResult result;
  result.checked = true;
  result.logits.max_abs_logit = 10;
  EXPECT_TRUE(complaints(result, kernels::DType::kFloat32).empty());
  result.logits.max_difference_before_flips = 6e-5;
  EXPECT_EQ(complaints(result, kernels::DType::kFloat32).size(), 1U);
  result.logits.flips.push_back({});  // a tie is no complaint
  EXPECT_EQ(complaints(result, kernels::DType::kFloat32).size(), 1U);
  result.logits.flips.back().margin = 0.5;
  result.logits.same_placement_bit_equal = false;
  result.logits.runs_bit_identical = false;
  result.traffic.equal_on_every_rank = false;
  EXPECT_EQ(complaints(result, kernels::DType::kFloat32).size(), 5U);
}

}  // namespace
}  // namespace coterie::cli
