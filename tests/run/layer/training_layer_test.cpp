// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/training_layer.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "coterie/base/error.hpp"
#include "tests/run/layer/training_case.hpp"

namespace coterie::layer {
namespace {

using exchange::ExchangeForm;
using kernels::Activation;
using kernels::DType;

/// What each device holds of the idle expert: its gradients must be exact zeros.
bool has_exact_zeros(const TrainingOutcome& outcome) {
  for (const auto& gradient : outcome.experts) {
    bool is_zero = true;
    for (const std::byte byte : gradient) {
      is_zero = is_zero && byte == std::byte{0};
    }
    if (is_zero) {
      return true;
    }
  }
  return false;
}

TEST(TrainingLayer, EveryPairOfChunksGivesTheSameBits) {
  for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat64}) {
    for (const auto form : {ExchangeForm::kPerDevice, ExchangeForm::kPerExpert}) {
      TrainingCase made = training_case(1, 3, type, Activation::kSwiGlu);
      made.options.exchange.form = form;
      const TrainingOutcome wanted = run_alone(made);
      EXPECT_TRUE(has_exact_zeros(wanted));
      for (const std::int64_t forward : {1, 2, 3, 7}) {
        for (const std::int64_t backward : {1, 2, 3, 7}) {
          made.options.forward_chunks = forward;
          made.options.backward_chunks = backward;
          EXPECT_EQ(difference(joined(run_as_ranks(made)), wanted), "")
              << forward << " and " << backward << " chunks on ranks, " << exchange::name_of(form);
          EXPECT_EQ(difference(run_alone(made), wanted), "")
              << forward << " and " << backward << " chunks, " << exchange::name_of(form);
        }
      }
    }
  }
}

TEST(TrainingLayer, PartsThreadsAndRecomputeChangeNoBit) {
  for (const Activation activation :
       {Activation::kSwiGlu, Activation::kGelu, Activation::kGeluTanh}) {
    TrainingCase made = training_case(2, 4, DType::kFloat32, activation);
    const TrainingOutcome wanted = run_alone(made);
    kernels::Threads threads(3);
    EXPECT_EQ(difference(run_alone(made, {&threads}), wanted), "");
    made.options.exchange.max_expanded_rows = 11;
    made.options.forward_chunks = 2;
    EXPECT_EQ(difference(run_alone(made, {&threads}), wanted), "");
    EXPECT_EQ(difference(joined(run_as_ranks(made)), wanted), "");
    made.options.recompute = true;
    made.options.backward_chunks = 3;
    EXPECT_EQ(difference(run_alone(made), wanted), "");
    EXPECT_EQ(difference(joined(run_as_ranks(made)), wanted), "");
  }
}

TEST(TrainingLayer, CopiesOfExpertsGiveTheSameBitsOnRanks) {
  TrainingCase made = training_case(3, 4, DType::kFloat32, Activation::kSwiGlu, true);
  const TrainingOutcome wanted = run_alone(made);
  made.options.forward_chunks = 2;
  made.options.backward_chunks = 3;
  EXPECT_EQ(difference(joined(run_as_ranks(made)), wanted), "");
}

TEST(TrainingLayer, FormsDifferInNoBitOfTheirFp32Sums) {
  TrainingCase made = training_case(4, 4, DType::kFloat32, Activation::kSwiGlu);
  const TrainingOutcome wanted = run_alone(made);
  made.options.exchange.form = ExchangeForm::kPerExpert;
  EXPECT_EQ(difference(run_alone(made), wanted), "");
}

TEST(TrainingLayer, ForwardHasTheBitsOfInference) {
  const TrainingCase made = training_case(5, 4, DType::kFloat32, Activation::kSwiGlu);
  const TrainingOutcome wanted = run_alone(made);
  MoeOptions options;
  options.hidden = made.options.hidden;
  options.intermediate = made.options.intermediate;
  options.num_experts = made.options.num_experts;
  options.top_k = made.top_k;
  const Block router(options.num_experts, options.hidden, DType::kFloat32);
  MoeWeights weights{router.view(), {}, {}};
  for (std::size_t e = 0; e < made.up.size(); ++e) {
    weights.gate_up.push_back(made.up[e].view());
    weights.down.push_back(made.down[e].view());
  }
  MoeLayer layer(options, weights, made.placement);
  Block y(made.num_tokens(), options.hidden, DType::kFloat32);
  const auto* pick_weights = made.weights.view().row<float>(0);
  layer.forward_routed(made.x.view(), {made.ids, {pick_weights, made.ids.size()}, made.devices},
                       y.view());
  EXPECT_EQ(y.bytes(), wanted.y.bytes());
}

/// sum of y times grad_y.
double loss_of(const TrainingCase& made) {
  const Block y = run_alone(made).y;
  double loss = 0.0;
  for (std::int64_t t = 0; t < made.num_tokens(); ++t) {
    for (std::int64_t c = 0; c < made.options.hidden; ++c) {
      loss += y.at(t, c) * made.grad_y.at(t, c);
    }
  }
  return loss;
}

/// dL/d(one number of `block`) by central differences.
double slope(TrainingCase& made, Block& block, std::int64_t row, std::int64_t column) {
  const double value = block.at(row, column);
  const double step = 1e-5;
  block.set(row, column, value + step);
  const double above = loss_of(made);
  block.set(row, column, value - step);
  const double below = loss_of(made);
  block.set(row, column, value);
  return (above - below) / (2.0 * step);
}

TEST(TrainingLayer, GradientsAreTheSlopesOfTheLoss) {
  for (const Activation activation : {Activation::kSwiGlu, Activation::kGeluTanh}) {
    TrainingCase made = training_case(6, 2, DType::kFloat64, activation);
    const TrainingOutcome got = run_alone(made);
    for (const std::int64_t token : {0, 17, 99}) {
      EXPECT_NEAR(got.grad_x.at(token, 5), slope(made, made.x, token, 5), 1e-6);
    }
    for (std::int64_t token = 0, found = 0; found < 3; ++token) {
      if (made.ids[static_cast<std::size_t>(token * made.top_k + 1)] >= 0) {
        ++found;
        EXPECT_NEAR(got.grad_weights.at(token, 1), slope(made, made.weights, token, 1), 1e-6);
      } else {
        EXPECT_EQ(got.grad_weights.at(token, 1), 0.0);
      }
    }
    // Expert 0 is the first slot of the first device: up, down, then biases.
    const auto number = [&](std::size_t parameter, std::int64_t at) {
      double value = 0.0;
      std::memcpy(&value, got.experts[parameter].data() + 8 * at, 8);
      return value;
    };
    const std::int64_t hidden = made.options.hidden;
    EXPECT_NEAR(number(0, 3 * hidden + 4), slope(made, made.up[0], 3, 4), 1e-6);
    EXPECT_NEAR(number(1, 3 * made.options.intermediate + 4), slope(made, made.down[0], 3, 4),
                1e-6);
    if (activation != Activation::kSwiGlu) {
      EXPECT_NEAR(number(2, 7), slope(made, made.up_bias[0], 0, 7), 1e-6);
      EXPECT_NEAR(number(3, 7), slope(made, made.down_bias[0], 0, 7), 1e-6);
    }
  }
}

TEST(TrainingLayer, KeepsRowsAndPreActivationsOnly) {
  TrainingCase made = training_case(7, 1, DType::kFloat32, Activation::kSwiGlu);
  TrainingLayer layer(made.options, made.placement, {});
  const std::vector<Block> empty;
  DeviceExperts experts;
  for (std::size_t e = 0; e < made.up.size(); ++e) {
    experts.up.push_back(made.up[e].view());
    experts.down.push_back(made.down[e].view());
  }
  Block y(made.num_tokens(), made.options.hidden, made.type);
  const TrainingBatch batch{made.x.view(),
                            {made.num_tokens(), made.top_k, made.ids, {}, made.devices},
                            made.weights.view(),
                            {}};
  const auto state = layer.forward(batch, {&experts, 1}, y.view());
  const auto num_entries = static_cast<std::size_t>(state->lists->sent.entries.num_entries());
  const std::size_t pre_bytes = num_entries * 2 * made.options.intermediate * 4;
  // ByteBuffer rounds up by an eighth; x itself is borrowed.
  EXPECT_LE(state->bytes_held(), pre_bytes + pre_bytes / 8 + 64);
}

TEST(TrainingLayer, NamesWhatDoesNotFit) {
  TrainingCase made = training_case(8, 2, DType::kFloat32, Activation::kSwiGlu);
  made.options.backward_chunks = 0;
  EXPECT_THROW(run_alone(made), Error);
  made = training_case(8, 2, DType::kFloat32, Activation::kSwiGlu);
  made.up[0] = Block(3, 3, made.type);
  EXPECT_THROW(TrainingLayer(made.options, placement::contiguous_placement(5, 2), {}), Error);
  made = training_case(8, 2, DType::kFloat64, Activation::kSwiGlu);
  made.weights = Block(made.num_tokens(), made.top_k, DType::kFloat32);
  try {
    run_alone(made);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 3: routing weights"), std::string::npos);
  }
}

}  // namespace
}  // namespace coterie::layer
