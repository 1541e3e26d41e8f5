// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/adamw.hpp"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "coterie/base/json.hpp"
#include "coterie/training/gradient_norm.hpp"

namespace coterie::training {
namespace {

Parameter whole(const std::string& name, const at::Tensor& value) {
  Parameter parameter;
  parameter.name = name;
  parameter.value = value;
  const std::vector<std::int64_t> shape = value.sizes().vec();
  parameter.pieces = {{name, shape, std::vector<std::int64_t>(shape.size(), 0), shape, -1, 0}};
  return parameter;
}

/// Values and gradients of very different sizes; some gradients are exactly zero.
at::Tensor sample(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType type) {
  auto generator = at::detail::createCPUGenerator(seed);
  const at::Tensor mantissa = at::randn(shape, generator, at::kDouble);
  const at::Tensor exponent = at::randn(shape, generator, at::kDouble) * 3;
  const at::Tensor zero = at::rand(shape, generator, at::kDouble) < 0.1;
  return (mantissa * exponent.exp()).masked_fill(zero, 0).to(type);
}

double largest_relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor scale = at::maximum(a.abs(), b.abs()).to(at::kDouble) + 1e-30;
  return ((a.to(at::kDouble) - b.to(at::kDouble)).abs() / scale).max().item<double>();
}

/// Ten steps of ours and of torch::optim::AdamW over the same gradients.
double difference_to_torch(at::ScalarType type, bool reference) {
  AdamWOptions options;
  options.weight_decay = 0.1;
  options.reference = reference;
  const at::Tensor start = sample({37, 19}, 1, type);
  at::Tensor theirs = start.clone().requires_grad_(true);
  torch::optim::AdamW torch_adamw({theirs}, torch::optim::AdamWOptions(1e-2)
                                                .betas({options.beta1, options.beta2})
                                                .eps(options.epsilon)
                                                .weight_decay(options.weight_decay));
  std::vector<Parameter> parameters = {whole("w", start.clone().requires_grad_(true))};
  AdamW ours(parameters, options);
  for (std::uint64_t step = 0; step < 10; ++step) {
    const at::Tensor gradient = sample({37, 19}, 100 + step, type);
    theirs.mutable_grad() = gradient.clone();
    parameters[0].value.mutable_grad() = gradient.clone();
    torch_adamw.step();
    ours.step(1e-2, 1.0);
  }
  return largest_relative_difference(parameters[0].value.detach(), theirs.detach());
}

TEST(AdamWTest, EqualsTorchToTheLastDigits) {
  EXPECT_LT(difference_to_torch(at::kDouble, false), 1e-13);
  EXPECT_LT(difference_to_torch(at::kDouble, true), 1e-13);
  EXPECT_LT(difference_to_torch(at::kFloat, false), 1e-4);  // elements near zero cancel
  EXPECT_LT(difference_to_torch(at::kFloat, true), 1e-4);
}

TEST(AdamWTest, FirstStepMovesByTheRateAgainstTheSign) {
  AdamWOptions options;
  options.weight_decay = 0;
  options.epsilon = 0;
  std::vector<Parameter> parameters = {whole("w", at::ones({2}, at::kDouble).requires_grad_(true))};
  parameters[0].value.mutable_grad() = at::tensor({3.0, -0.01}, at::kDouble);
  AdamW adamw(parameters, options);
  adamw.step(0.25, 1.0);
  EXPECT_NEAR(parameters[0].value[0].item<double>(), 0.75, 1e-12);
  EXPECT_NEAR(parameters[0].value[1].item<double>(), 1.25, 1e-12);
}

TEST(AdamWTest, DecayAloneShrinksAndCanBeSwitchedOff) {
  AdamWOptions options;
  options.weight_decay = 0.5;
  std::vector<Parameter> parameters = {whole("a", at::ones({3}).requires_grad_(true)),
                                       whole("b", at::ones({3}).requires_grad_(true))};
  parameters[1].has_decay = false;
  for (Parameter& parameter : parameters) {
    parameter.value.mutable_grad() = at::zeros({3});
  }
  AdamW adamw(parameters, options);
  adamw.step(0.1, 1.0);
  EXPECT_FLOAT_EQ(parameters[0].value[0].item<float>(), 0.95F);
  EXPECT_FLOAT_EQ(parameters[1].value[0].item<float>(), 1.0F);
}

TEST(AdamWTest, BitsDoNotDependOnHowATensorIsCut) {
  const at::Tensor start = sample({101, 7}, 5, at::kFloat);
  const at::Tensor gradient = sample({101, 7}, 6, at::kFloat);
  const auto after_steps = [&](std::int64_t first, std::int64_t rows) {
    std::vector<Parameter> parameters = {
        whole("w", start.narrow(0, first, rows).clone().requires_grad_(true))};
    AdamW adamw(parameters, {});
    for (int step = 0; step < 3; ++step) {
      parameters[0].value.mutable_grad() = gradient.narrow(0, first, rows).clone();
      adamw.step(1e-3, 0.7);
    }
    return parameters[0].value.detach();
  };
  const at::Tensor all = after_steps(0, 101);
  for (const std::int64_t cut : {1, 3, 50, 100}) {
    EXPECT_TRUE(at::equal(all, at::cat({after_steps(0, cut), after_steps(cut, 101 - cut)})));
  }
}

TEST(AdamWTest, MasterWeightsKeepWhatBf16Drops) {
  AdamWOptions options;
  options.weight_decay = 0;
  std::vector<Parameter> parameters = {
      whole("w", at::ones({4}, at::kBFloat16).requires_grad_(true))};
  AdamW adamw(parameters, options);
  for (int step = 0; step < 100; ++step) {  // 100 steps of 1e-4: each far below a bf16 ulp of 1
    parameters[0].value.mutable_grad() = at::ones({4}, at::kBFloat16);
    adamw.step(1e-4, 1.0);
  }
  EXPECT_NEAR(adamw.states()[0].master[0].item<float>(), 0.99F, 1e-5);
  EXPECT_NEAR(parameters[0].value[0].item<float>(), 0.99F, 4e-3);
  EXPECT_LT(parameters[0].value[0].item<float>(), 1.0F);
}

TEST(AdamWTest, WithoutMasterWeightsStatesAreBf16AndStepsAreRoundedOnes) {
  AdamWOptions options;
  options.master_weights = false;
  const at::Tensor start = sample({37, 19}, 1, at::kBFloat16);
  std::vector<Parameter> narrow = {whole("w", start.clone())};
  std::vector<Parameter> wide = {whole("w", start.to(at::kFloat))};
  AdamW ours(narrow, options);
  AdamW fp32(wide, options);
  EXPECT_FALSE(ours.states()[0].master.defined());
  EXPECT_EQ(ours.states()[0].average.scalar_type(), at::kBFloat16);
  EXPECT_EQ(ours.num_bytes(), 2 * 2 * 37 * 19);
  const at::Tensor gradient = sample({37, 19}, 100, at::kBFloat16);
  narrow[0].value.mutable_grad() = gradient;
  wide[0].value.mutable_grad() = gradient.to(at::kFloat);
  ours.step(1e-2, 0.5);
  fp32.step(1e-2, 0.5);
  EXPECT_TRUE(narrow[0].value.equal(wide[0].value.to(at::kBFloat16)));
  EXPECT_TRUE(ours.states()[0].square.equal(fp32.states()[0].square.to(at::kBFloat16)));
  const AdamWOptions again = read_adamw_options(JsonReader(to_json(options), "options"));
  EXPECT_EQ(again, options);
}

TEST(AdamWTest, ShardedStateGivesTheBitsOfWholeState) {
  const auto run = [](int num_ranks, bool shard, std::vector<std::int64_t>& bytes) {
    at::Tensor result;
    bytes.assign(static_cast<std::size_t>(num_ranks), 0);
    comm::run_ranks(num_ranks, [&](comm::Communicator& world) {
      AdamWOptions options;
      options.shard_state = shard;
      std::vector<Parameter> parameters = {whole("a", sample({5, 3}, 1, at::kFloat)),
                                           whole("b", sample({2}, 2, at::kFloat)),
                                           whole("c", sample({64, 8}, 3, at::kFloat))};
      for (Parameter& parameter : parameters) {
        parameter.value.requires_grad_(true);
        parameter.replicas = &world;
      }
      AdamW adamw(parameters, options);
      for (std::uint64_t step = 0; step < 4; ++step) {
        for (Parameter& parameter : parameters) {
          parameter.value.mutable_grad() = sample(parameter.value.sizes(), 7 + step, at::kFloat);
        }
        adamw.step(1e-2, 0.5);
      }
      bytes[static_cast<std::size_t>(world.rank())] = adamw.num_bytes();
      std::vector<at::Tensor> flat;
      for (const Parameter& parameter : parameters) {
        flat.push_back(parameter.value.detach().flatten());
      }
      if (world.rank() == world.size() - 1) {
        result = at::cat(flat);
      }
    });
    return result;
  };
  std::vector<std::int64_t> whole_bytes;
  const at::Tensor expected = run(1, false, whole_bytes);
  for (const int num_ranks : {2, 3, 4}) {
    std::vector<std::int64_t> bytes;
    EXPECT_TRUE(at::equal(run(num_ranks, true, bytes), expected)) << num_ranks;
    std::int64_t total = 0;
    for (const std::int64_t share : bytes) {
      total += share;
      EXPECT_LE(share, whole_bytes[0] / num_ranks + 200) << num_ranks;
    }
    EXPECT_EQ(total, whole_bytes[0]) << num_ranks;
    EXPECT_TRUE(at::equal(run(num_ranks, false, bytes), expected)) << num_ranks;
  }
}

TEST(AdamWTest, OptionsSurviveJsonAndRefuseUnknownKeys) {
  AdamWOptions options;
  options.beta2 = 0.999;
  options.shard_state = false;
  const Json document = to_json(options);
  EXPECT_EQ(read_adamw_options(JsonReader(document, "x")), options);
  const Json wrong = parse_json(R"({"betta1": 0.9})", "x");
  EXPECT_THROW(read_adamw_options(JsonReader(wrong, "x")), Error);
}

}  // namespace
}  // namespace coterie::training
