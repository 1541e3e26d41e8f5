// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gate_case.hpp"

namespace coterie::gates {
namespace {

TEST(Noise, DependsOnSeedStepStreamAndTokenIdAlone) {
  TokenBatch batch = random_batch({40}, 3, 1);
  const at::Tensor noise = normal_noise(batch, 8, 2);
  TokenBatch other = random_batch({3, 5}, 7, 9);
  other.token_ids = at::tensor({139, 100, 117, 101, 102, 103, 104, 105}, at::kLong);
  const at::Tensor again = normal_noise(other, 8, 2);
  EXPECT_TRUE(bit_equal(again[0], noise[39]));
  EXPECT_TRUE(bit_equal(again[2], noise[17]));
  EXPECT_TRUE(bit_equal(normal_noise(batch, 5, 2), noise.narrow(1, 0, 5)));
  EXPECT_FALSE(bit_equal(normal_noise(batch, 8, 3), noise));
  batch.step += 1;
  EXPECT_FALSE(bit_equal(normal_noise(batch, 8, 2), noise));
  batch.step -= 1;
  batch.seed += 1;
  EXPECT_FALSE(bit_equal(normal_noise(batch, 8, 2), noise));
}

TEST(Noise, IsNormalAndUniformAndUncorrelated) {
  const TokenBatch batch = random_batch({4000}, 1, 1);
  const at::Tensor normal = normal_noise(batch, 16, 0);
  EXPECT_NEAR(normal.mean().item<double>(), 0.0, 0.02);
  EXPECT_NEAR(normal.std().item<double>(), 1.0, 0.02);
  EXPECT_NEAR(normal.gt(1.96).to(at::kDouble).mean().item<double>(), 0.025, 0.004);
  const at::Tensor neighbours = normal.narrow(0, 0, 3999) * normal.narrow(0, 1, 3999);
  EXPECT_NEAR(neighbours.mean().item<double>(), 0.0, 0.02);
  const at::Tensor uniform = uniform_noise(batch, 16, 0);
  EXPECT_TRUE(uniform.ge(0).logical_and(uniform.lt(1)).all().item<bool>());
  EXPECT_NEAR(uniform.mean().item<double>(), 0.5, 0.01);
}

TEST(Noise, OnlyInTraining) {
  GateOptions o = small_gate(GateKind::kGshard);
  const auto gate = random_gate(o, 3);
  TokenBatch batch = random_batch({20}, o.hidden, 4);
  const at::Tensor calm = gate->forward(batch).logits;
  batch.step += 1;
  EXPECT_TRUE(bit_equal(gate->forward(batch).logits, calm));
  batch.training = true;
  const at::Tensor noisy = gate->forward(batch).logits;
  EXPECT_FALSE(bit_equal(noisy, calm));
  EXPECT_TRUE(bit_equal(gate->forward(batch).logits, noisy)) << "a recompute must replay it";
}

}  // namespace
}  // namespace coterie::gates
