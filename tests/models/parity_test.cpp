// SPDX-License-Identifier: Apache-2.0
// Logits and routing against transformers, on the models of tests/python/make_random_models.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <span>
#include <vector>

#include "tests/models/random_models.hpp"

namespace coterie::models {
namespace {

/// max |found - expected| / max |expected|, both [T, V]
double relative_difference(const Matrix<float>& found, std::span<const float> expected) {
  double difference = 0;
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double value = expected[i];
    difference = std::max(difference, std::abs(found.values()[i] - value));
    largest = std::max(largest, std::abs(value));
  }
  return difference / largest;
}

class Parity : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(random_models_folder() / "done")) {
      GTEST_SKIP() << "no models of transformers in " << random_models_folder()
                   << " (make_random_models.py needs torch and transformers)";
    }
  }
};

/// Entries of each token by ascending id: transformers leaves the order open where groups or a bias
/// decide.
template <typename Id>
std::map<std::int64_t, float> by_id(std::span<const Id> ids, std::span<const float> weights) {
  std::map<std::int64_t, float> entries;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    entries[ids[i]] = weights[i];
  }
  return entries;
}

void check_unordered(const LayerRouting& routing, std::span<const std::int64_t> ids,
                     std::span<const float> weights) {
  const auto k = static_cast<std::size_t>(routing.top_k);
  for (std::size_t t = 0; t + k <= routing.ids.size(); t += k) {
    const auto found = by_id(routing.ids.subspan(t, k), routing.weights.subspan(t, k));
    const auto wanted = by_id(ids.subspan(t, k), weights.subspan(t, k));
    ASSERT_EQ(found.size(), wanted.size());
    for (auto a = found.begin(), b = wanted.begin(); a != found.end(); ++a, ++b) {
      ASSERT_EQ(a->first, b->first) << "layer " << routing.layer << ", token " << t / k;
      ASSERT_NEAR(a->second, b->second, 2e-5 * std::max(1.0F, b->second))
          << "layer " << routing.layer;
    }
  }
}

void check_routing(const LayerRouting& routing, const ExpectedOutputs& expected,
                   std::int64_t first_row, bool ordered) {
  const auto ids = expected.integers("ids." + std::to_string(routing.layer));
  const auto weights = expected.floats("weights." + std::to_string(routing.layer));
  const auto first = static_cast<std::size_t>(first_row * routing.top_k);
  ASSERT_LE(first + routing.ids.size(), ids.size());
  if (!ordered) {
    check_unordered(routing, std::span(ids).subspan(first), std::span(weights).subspan(first));
    return;
  }
  for (std::size_t i = 0; i < routing.ids.size(); ++i) {
    ASSERT_EQ(routing.ids[i], ids[first + i]) << "layer " << routing.layer << ", entry " << i;
    ASSERT_NEAR(routing.weights[i], weights[first + i], 2e-5) << "layer " << routing.layer;
  }
}

double worst_difference(const std::string& name, MoePath path, kernels::Threads* threads) {
  DecoderOptions options;
  options.moe = path;
  options.execution.threads = threads;
  Decoder decoder(random_models_folder() / name, options);
  const ExpectedOutputs expected(name);
  const auto batch = expected.batch();
  const bool ordered =
      decoder.config().router == RouterOptions() && decoder.config().family != "deepseek_v2";
  int layers_seen = 0;
  const Matrix<float> together = decoder.logits(batch, [&](const LayerRouting& routing) {
    ++layers_seen;
    check_routing(routing, expected, 0, ordered);
  });
  EXPECT_EQ(layers_seen, std::ssize(decoder.config().moe_layers));
  double worst = 0;
  std::size_t first = 0;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    const auto logits = expected.floats("logits." + std::to_string(n));
    Matrix<float> alone = decoder.logits(batch.subspan(n, 1));
    worst = std::max(worst, relative_difference(alone, logits));
    Matrix<float> part(alone.rows(), alone.columns());
    std::ranges::copy(together.values().subspan(first * alone.columns(), part.values().size()),
                      part.values().begin());
    worst = std::max(worst, relative_difference(part, logits));
    first += alone.rows();
  }
  return worst;
}

TEST_P(Parity, LogitsAndRoutingEqualTransformers) {
  kernels::Threads threads(2);
  const auto report = [](const char* path, double worst) {
    EXPECT_LE(worst, 1e-5) << GetParam() << ", " << path;
    std::printf("%-20s %-9s: max |difference| = %.2e of max |logit|\n", GetParam().c_str(), path,
                worst);
  };
  report("reference", worst_difference(GetParam(), MoePath::kReference, nullptr));
  report("layer", worst_difference(GetParam(), MoePath::kLayer, &threads));
}

/// Greedy tokens of both prompts, decoded together.
std::vector<std::vector<std::int64_t>> greedy(Decoder& decoder, const ExpectedOutputs& expected,
                                              std::span<const std::size_t> prompts) {
  std::vector<KeyValueCache> caches;
  std::vector<std::vector<std::int32_t>> next;
  for (const std::size_t n : prompts) {
    caches.push_back(decoder.make_cache());
    next.push_back(expected.batch()[n]);
  }
  std::vector<std::vector<std::int64_t>> tokens(prompts.size());
  for (int step = 0; step < 12; ++step) {
    std::vector<SequencePart> parts;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      parts.push_back({next[i], &caches[i]});
    }
    const Matrix<float> logits = decoder.extend(parts);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto row = logits.row(i);
      const auto best = std::ranges::max_element(row) - row.begin();
      tokens[i].push_back(best);
      next[i] = {static_cast<std::int32_t>(best)};
    }
  }
  return tokens;
}

TEST_P(Parity, GreedyTokensEqualTransformersGenerate) {
  Decoder decoder(random_models_folder() / GetParam());
  const ExpectedOutputs expected(GetParam());
  const std::vector<std::size_t> prompts = {0, 3};
  const auto tokens = greedy(decoder, expected, prompts);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(tokens[i], expected.integers("greedy." + std::to_string(prompts[i])));
  }
}

TEST_P(Parity, Bf16StaysWithinTheSpreadOfTwoBackEndsOfTransformers) {
  if (!GetParam().ends_with("_bf16")) {
    GTEST_SKIP() << "stored in another type";
  }
  DecoderOptions options;
  options.weight_type = kernels::DType::kBfloat16;
  Decoder decoder(random_models_folder() / GetParam(), options);
  const ExpectedOutputs expected(GetParam());
  const double spread = expected.floats("bf16_spread").at(0);
  const double difference = relative_difference(decoder.logits(expected.batch().subspan(2, 1)),
                                                expected.floats("logits.2"));
  EXPECT_LE(difference, spread);
  std::printf("%-20s bf16: %.2e from fp32, transformers' spread %.2e\n", GetParam().c_str(),
              difference, spread);
}

INSTANTIATE_TEST_SUITE_P(Transformers, Parity, testing::ValuesIn(random_model_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace coterie::models
