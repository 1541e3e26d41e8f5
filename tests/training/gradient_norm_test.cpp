// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/gradient_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace coterie::training {
namespace {

at::Tensor numbers(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

Parameter with_gradient(const std::string& name, const at::Tensor& gradient,
                        std::vector<Piece> pieces) {
  Parameter parameter;
  parameter.name = name;
  parameter.value = at::zeros_like(gradient).requires_grad_(true);
  parameter.value.mutable_grad() = gradient;
  parameter.pieces = std::move(pieces);
  check_pieces(name, parameter.pieces, parameter.value);
  return parameter;
}

/// A dense matrix on all ranks and four experts, spread over `expert_ranks` of the world; where
/// there are more ranks than that, experts have replicas.
double norm_with(int world_size, int expert_ranks) {
  std::vector<double> norms(static_cast<std::size_t>(world_size));
  comm::run_ranks(world_size, [&](comm::Communicator& world) {
    std::vector<Parameter> parameters;
    parameters.push_back(
        with_gradient("dense", numbers({9, 7}, 1), {{"dense", {9, 7}, {0, 0}, {9, 7}, -1, 0}}));
    parameters[0].replicas = &world;
    const int per_rank = 4 / expert_ranks;
    const int position = world.rank() % expert_ranks;
    std::vector<at::Tensor> stack;
    std::vector<Piece> pieces;
    for (int slot = 0; slot < per_rank; ++slot) {
      const int expert = position * per_rank + slot;
      stack.push_back(numbers({6, 5}, 10 + static_cast<std::uint64_t>(expert)));
      pieces.push_back({"expert." + std::to_string(expert), {6, 5}, {0, 0}, {6, 5}, slot, 0});
    }
    parameters.push_back(with_gradient("experts", at::stack(stack), pieces));
    // Only its rank matters here: replicas of one expert are ranks with equal positions.
    comm::FakeGroup replicas(world_size / expert_ranks);
    parameters[1].replicas = &replicas.communicator(world.rank() / expert_ranks);
    norms[static_cast<std::size_t>(world.rank())] = global_gradient_norm(parameters, world);
  });
  for (const double norm : norms) {
    EXPECT_EQ(norm, norms[0]);
  }
  return norms[0];
}

TEST(GradientNormTest, EveryParameterCountsOnceInEveryLayout) {
  double squares = numbers({9, 7}, 1).to(at::kDouble).square().sum().item<double>();
  for (std::uint64_t expert = 0; expert < 4; ++expert) {
    squares += numbers({6, 5}, 10 + expert).to(at::kDouble).square().sum().item<double>();
  }
  const double alone = norm_with(1, 1);
  EXPECT_NEAR(alone, std::sqrt(squares), 1e-12);
  EXPECT_EQ(norm_with(2, 2), alone);
  EXPECT_EQ(norm_with(4, 4), alone);
  EXPECT_EQ(norm_with(4, 2), alone);
  EXPECT_EQ(norm_with(2, 1), alone);
}

TEST(GradientNormTest, CutTensorsAddUp) {
  const at::Tensor gradient = numbers({8, 6}, 3);
  double norm = 0;
  comm::run_ranks(2, [&](comm::Communicator& world) {
    const std::int64_t first = world.rank() * 5;
    const std::int64_t rows = world.rank() == 0 ? 5 : 3;
    std::vector<Parameter> parameters = {
        with_gradient("w", gradient.narrow(0, first, rows).clone(),
                      {{"w", {8, 6}, {first, 0}, {rows, 6}, -1, 0}})};
    norm = global_gradient_norm(parameters, world);
  });
  EXPECT_NEAR(norm, gradient.to(at::kDouble).norm().item<double>(), 1e-12);
}

TEST(GradientNormTest, ClipFactor) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_NEAR(clip_factor(4.0, 1.0), 0.25, 1e-6);
  EXPECT_EQ(clip_factor(4.0, 0.0), 1.0);
}

TEST(GradientNormTest, AMissingGradientIsAFaultThatNamesTheParameter) {
  Parameter parameter;
  parameter.name = "lonely";
  parameter.value = at::zeros({2}).requires_grad_(true);
  parameter.pieces = {{"lonely", {2}, {0}, {2}, -1, 0}};
  comm::SingleCommunicator world;
  const std::vector<Parameter> parameters = {parameter};
  try {
    global_gradient_norm(parameters, world);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("lonely"), std::string::npos);
  }
}

}  // namespace
}  // namespace coterie::training
