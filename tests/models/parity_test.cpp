// SPDX-License-Identifier: Apache-2.0
// Logits and routing against transformers, on the models of tests/python/make_random_models.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

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

void check_routing(const LayerRouting& routing, const ExpectedOutputs& expected,
                   std::int64_t first_row) {
  const auto ids = expected.integers("ids." + std::to_string(routing.layer));
  const auto weights = expected.floats("weights." + std::to_string(routing.layer));
  const auto first = static_cast<std::size_t>(first_row * routing.top_k);
  ASSERT_LE(first + routing.ids.size(), ids.size());
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
  int layers_seen = 0;
  const Matrix<float> together = decoder.logits(batch, [&](const LayerRouting& routing) {
    ++layers_seen;
    check_routing(routing, expected, 0);
  });
  EXPECT_EQ(layers_seen, decoder.config().num_layers);
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

INSTANTIATE_TEST_SUITE_P(Transformers, Parity, testing::ValuesIn(random_model_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace coterie::models
