// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/gate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Gated {
  std::int64_t first_bad = -1;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Gated gate(const std::vector<float>& logits, std::int64_t num_experts, int top_k, bool renormalise,
           Backend backend, Threads* threads = nullptr) {
  const std::int64_t num_tokens = static_cast<std::int64_t>(logits.size()) / num_experts;
  Gated out;
  out.ids.assign(static_cast<std::size_t>(num_tokens * top_k), 12345);
  out.weights.assign(out.ids.size(), kNan);
  out.first_bad = topk_gate({logits.data(), num_tokens, num_experts, num_experts, DType::kFloat32},
                            {top_k, renormalise}, out.ids, out.weights, {threads, backend});
  return out;
}

std::vector<float> random_logits(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(3.0 * random.normal());
  }
  return values;
}

class Gate : public testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, Gate, testing::Values(Backend::kReference, Backend::kGeneric),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST(GateTwins, AgreeOnRandomShapes) {
  Threads threads(3);
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    const auto num_experts =
        static_cast<std::int64_t>(1 + random.below(round % 10 == 0 ? 1024 : 70));
    const int top_k = static_cast<int>(
        1 + random.below(std::min<std::uint64_t>(24, static_cast<std::uint64_t>(num_experts))));
    const auto num_tokens = static_cast<std::int64_t>(random.below(200));
    std::vector<float> logits = random_logits(num_tokens * num_experts, random.next());
    for (float& logit : logits) {
      if (round % 3 == 0) {
        logit = std::round(logit);  // many ties
      }
    }
    for (const bool renormalise : {false, true}) {
      const Gated slow = gate(logits, num_experts, top_k, renormalise, Backend::kReference);
      const Gated fast = gate(logits, num_experts, top_k, renormalise, Backend::kGeneric, &threads);
      EXPECT_EQ(slow.first_bad, -1);
      EXPECT_EQ(fast.first_bad, -1);
      ASSERT_EQ(slow.ids, fast.ids);
      for (std::size_t i = 0; i < slow.weights.size(); ++i) {
        ASSERT_NEAR(slow.weights[i], fast.weights[i], 2e-6 * slow.weights[i] + 1e-12);
      }
    }
  }
}

TEST_P(Gate, GivesSoftmaxWeightsInDescendingOrder) {
  const Gated out = gate({std::log(1.0F), std::log(4.0F), std::log(3.0F), std::log(2.0F)}, 4, 2,
                         false, GetParam());
  EXPECT_EQ(out.ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_NEAR(out.weights[0], 0.4, 1e-6);
  EXPECT_NEAR(out.weights[1], 0.3, 1e-6);
  const Gated normalised = gate({std::log(1.0F), std::log(4.0F), std::log(3.0F), std::log(2.0F)}, 4,
                                2, true, GetParam());
  EXPECT_NEAR(normalised.weights[0], 4.0 / 7.0, 1e-6);
  EXPECT_NEAR(normalised.weights[1], 3.0 / 7.0, 1e-6);
}

TEST_P(Gate, BreaksOnlyExactTiesByTheLowestId) {
  EXPECT_EQ(gate({1, 2, 2, 2, 1}, 5, 4, false, GetParam()).ids,
            (std::vector<std::int32_t>{1, 2, 3, 0}));
  const float close = std::nextafter(2.0F, 3.0F);
  EXPECT_EQ(gate({2.0F, close, 2.0F}, 3, 3, false, GetParam()).ids,
            (std::vector<std::int32_t>{1, 0, 2}));
}

TEST_P(Gate, FindsDistinctExpertsWhenAllButOneAreMinusInfinity) {
  const Gated out = gate({-kInf, -kInf, 0.5F, -kInf}, 4, 3, true, GetParam());
  EXPECT_EQ(out.first_bad, -1);
  EXPECT_EQ(out.ids, (std::vector<std::int32_t>{2, 0, 1}));
  EXPECT_EQ(out.weights, (std::vector<float>{1, 0, 0}));
}

TEST_P(Gate, ContainsABadTokenAndReportsTheFirst) {
  for (const float bad : {kNan, kInf}) {
    const std::int64_t num_experts = 8, num_tokens = 300;
    const std::vector<float> clean = random_logits(num_experts * num_tokens, 3);
    std::vector<float> logits = clean;
    for (const std::size_t token : {171U, 250U}) {
      logits[token * 8 + 5] = bad;
    }
    Threads threads(3);
    const Gated expected = gate(clean, num_experts, 2, true, GetParam());
    const Gated out = gate(logits, num_experts, 2, true, GetParam(), &threads);
    EXPECT_EQ(out.first_bad, 171);
    for (std::size_t i = 0; i < out.ids.size(); ++i) {
      const bool poisoned = i / 2 == 171 || i / 2 == 250;
      EXPECT_EQ(out.ids[i], poisoned ? -1 : expected.ids[i]);
      EXPECT_EQ(out.weights[i], poisoned ? 0.0F : expected.weights[i]);
    }
  }
  EXPECT_EQ(gate({-kInf, -kInf}, 2, 1, false, GetParam()).first_bad, 0);
  EXPECT_EQ(gate({kNan, kNan}, 2, 1, false, GetParam()).ids, (std::vector<std::int32_t>{-1}));
}

TEST_P(Gate, SeesTheLastOfManyExperts) {
  for (const std::int64_t num_experts : {257, 300, 512, 1024, 4000}) {
    std::vector<float> logits = random_logits(num_experts, 11);
    logits.back() = 100.0F;
    EXPECT_EQ(gate(logits, num_experts, 1, false, GetParam()).ids[0], num_experts - 1);
  }
}

TEST_P(Gate, RefusesWhatDoesNotFit) {
  const auto message_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message_of([] {
              gate({1, 2, 3, 4}, 4, 5, false, GetParam());
            }),
            "topk_gate: top_k is 5, but there are 4 experts");
  EXPECT_EQ(message_of([] {
              gate({1, 2, 3, 4}, 4, 0, false, GetParam());
            }),
            "topk_gate: top_k is 0, but there are 4 experts");
  std::vector<float> logits(8), weights(4);
  std::vector<std::int32_t> ids(3);
  EXPECT_EQ(message_of([&] {
              topk_gate({logits.data(), 2, 4, 4, DType::kFloat32}, {2, false}, ids, weights,
                        {nullptr, GetParam()});
            }),
            "topk_gate: length of ids is 3, but tokens x top_k is 4");
  EXPECT_EQ(message_of([&] {
              topk_gate({nullptr, 2, 4, 4, DType::kFloat32}, {2, false}, ids, weights,
                        {nullptr, GetParam()});
            }),
            "topk_gate: logits [2, 4] is a null pointer");
}

}  // namespace
}  // namespace coterie::kernels
