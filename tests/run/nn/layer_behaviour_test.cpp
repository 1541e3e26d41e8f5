// SPDX-License-Identifier: Apache-2.0
// What a layer promises beside its numbers: equal bits, hooks, recompute, collectives, memory.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "coterie/base/error.hpp"
#include "tests/run/nn/rank_cases.hpp"

namespace coterie::nn {
namespace {

RankCase three_ranks(at::ScalarType type = at::kFloat) {
  RankCase made;
  made.num_devices = 3;
  made.num_tokens = {70, 0, 133};
  made.type = type;
  made.gate.type = type == at::kDouble ? gates::RouterType::kFloat64 : gates::RouterType::kFloat32;
  return made;
}

void expect_same_bits(const std::vector<Outcome>& a, const std::vector<Outcome>& b,
                      const std::string& what) {
  for (std::size_t rank = 0; rank < a.size(); ++rank) {
    EXPECT_TRUE(same_bits(a[rank], b[rank])) << what << ", rank " << rank;
  }
}

TEST(LayerBehaviour, ChunksPartsRecomputeAndRepetitionChangeNoBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int num_shards : {1, 2}) {
      RankCase made = three_ranks(type);
      made.num_shards = num_shards;
      made.num_tokens = {70, 0, 133, 5, 64, 65};
      const auto wanted = run_ranks_of(made);
      expect_same_bits(run_ranks_of(made), wanted, "again");
      for (const std::int64_t forward : {1, 2, 3}) {
        for (const std::int64_t backward : {1, 2, 3}) {
          made.change = [&](MoELayerOptions& options) {
            options.forward_chunks = forward;
            options.backward_chunks = backward;
            options.recompute = (forward + backward) % 2 == 0;
            options.exchange.max_expanded_rows = 50 * forward;
          };
          expect_same_bits(run_ranks_of(made), wanted,
                           std::to_string(forward) + "/" + std::to_string(backward));
        }
      }
    }
  }
}

TEST(LayerBehaviour, OneProcessForAllDevicesHasTheBitsOfRanks) {
  const RankCase made = three_ranks();
  const auto ranks = run_ranks_of(made);
  MoELayerOptions options = layer_options(made);
  options.placement = placement::contiguous_placement(7, 3);
  options.backward_chunks = 2;
  MoELayer layer(options);
  layer->set_virtual_sources({0, 70, 70, 203});
  gates::TokenBatch all;
  std::vector<at::Tensor> xs;
  std::vector<at::Tensor> directions;
  std::vector<at::Tensor> is_real;
  for (int rank = 0; rank < 3; ++rank) {
    const auto batch = batch_of(made, rank);
    xs.push_back(batch.x.detach());
    directions.push_back(direction_of(made, rank));
    is_real.push_back(batch.is_real.defined() ? batch.is_real
                                              : at::ones({batch.x.size(0)}, at::kBool));
  }
  all.x = at::cat(xs).requires_grad_(true);
  all.is_real = at::cat(is_real);
  all.training = true;
  const Outcome alone = run_layer(layer, all, at::cat(directions));
  std::vector<at::Tensor> y;
  std::vector<at::Tensor> up;
  std::vector<at::Tensor> down;
  for (const Outcome& rank : ranks) {
    y.push_back(rank.y);
    up.push_back(rank.gradients.at("experts.gate_up_proj"));
    down.push_back(rank.gradients.at("experts.down_proj"));
  }
  EXPECT_TRUE(at::equal(alone.y, at::cat(y)));
  EXPECT_TRUE(at::equal(alone.gradients.at("experts.gate_up_proj"), at::cat(up)));
  EXPECT_TRUE(at::equal(alone.gradients.at("experts.down_proj"), at::cat(down)));
}

TEST(LayerBehaviour, TwiceThroughTheSameGraphGivesTheSame) {
  RankCase made = three_ranks();
  const auto wanted = run_ranks_of(made);
  made.num_backwards = 2;
  expect_same_bits(run_ranks_of(made), wanted, "retain_graph");
  MoELayer layer(layer_options(RankCase()));
  const MoEResult result = layer->forward(batch_of(RankCase(), 0));
  const at::Tensor loss = result.y.sum();
  loss.backward();
  EXPECT_THROW(loss.backward(), std::exception);
}

TEST(LayerBehaviour, IdleExpertsGetExactZeros) {
  RankCase made = three_ranks();
  made.num_tokens = {2, 0, 1};  // at most 9 of 7 experts' picks: run until one idles
  made.gate.top_k = 1;
  const auto outcomes = run_ranks_of(made);
  std::int64_t num_idle = 0;
  for (const Outcome& outcome : outcomes) {
    const at::Tensor& gradient = outcome.gradients.at("experts.down_proj");
    ASSERT_TRUE(gradient.defined());
    num_idle += gradient.flatten(1).eq(0).all(1).sum().item<std::int64_t>();
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
  }
  EXPECT_GE(num_idle, 4);
}

struct Called {
  std::string hook;
  exchange::Direction direction;
  std::int64_t chunk;
  bool operator==(const Called&) const = default;
};

TEST(LayerBehaviour, HooksAreCalledInOrderOnceAChunk) {
  using exchange::Direction;
  for (const bool recompute : {false, true}) {
    std::vector<Called> called;
    RankCase made;
    made.num_tokens = {150};
    MoELayerOptions options = layer_options(made);
    options.forward_chunks = 2;
    options.recompute = recompute;
    const auto record = [&](const char* name) {
      return [&called, name](const HookPoint& point, const at::Tensor& rows) {
        EXPECT_EQ(rows.size(1), 10);
        called.push_back({name, point.direction, point.chunk});
        return at::Tensor();
      };
    };
    options.hooks = {record("start"),          record("before dispatch"), record("after dispatch"),
                     record("before combine"), record("after combine"),   record("end")};
    MoELayer layer(options);
    run_layer(layer, batch_of(made, 0), direction_of(made, 0));
    std::vector<Called> wanted = {{"start", Direction::kForward, 0}};
    for (const std::int64_t chunk : {0, 1}) {
      for (const char* name :
           {"before dispatch", "after dispatch", "before combine", "after combine"}) {
        wanted.push_back({name, Direction::kForward, chunk});
      }
    }
    wanted.push_back({"end", Direction::kForward, 0});
    if (recompute) {
      wanted.push_back({"before dispatch", Direction::kRecompute, 0});
      wanted.push_back({"after dispatch", Direction::kRecompute, 0});
    }
    for (const char* name :
         {"before dispatch", "after dispatch", "before combine", "after combine"}) {
      wanted.push_back({name, Direction::kBackward, 0});
    }
    EXPECT_EQ(called, wanted);
  }
}

at::Tensor to_half(const HookPoint&, const at::Tensor& rows) {
  return rows.to(at::kHalf);
}
at::Tensor to_float(const HookPoint&, const at::Tensor& rows) {
  return rows.to(at::kFloat);
}

TEST(LayerBehaviour, HooksCompressWhatTravels) {
  RankCase made = three_ranks();
  const auto plain = run_ranks_of(made);
  made.change = [](MoELayerOptions& options) {
    options.hooks.before_dispatch = to_half;
    options.hooks.after_dispatch = to_float;
    options.forward_chunks = 2;
    options.recompute = true;
  };
  const auto halved = run_ranks_of(made);
  for (std::size_t rank = 0; rank < plain.size(); ++rank) {
    EXPECT_EQ(halved[rank].statistics.bytes_dispatch * 2, plain[rank].statistics.bytes_dispatch);
    EXPECT_EQ(halved[rank].statistics.bytes_combine, plain[rank].statistics.bytes_combine);
    EXPECT_TRUE(at::allclose(halved[rank].y, plain[rank].y, 0.0, 0.05));
    EXPECT_TRUE(at::allclose(halved[rank].grad_x, plain[rank].grad_x, 0.0, 0.1));
  }
  EXPECT_FALSE(at::equal(halved[2].y, plain[2].y));
}

TEST(LayerBehaviour, HooksThatReturnTheSameChangeNoBit) {
  RankCase made = three_ranks();
  const auto wanted = run_ranks_of(made);
  made.change = [](MoELayerOptions& options) {
    const Hook copy = [](const HookPoint&, const at::Tensor& rows) { return rows.clone(); };
    options.hooks = {copy, copy, copy, copy, copy, copy};
    options.backward_chunks = 2;
  };
  expect_same_bits(run_ranks_of(made), wanted, "copies");
}

/// A movement of a user: counts, and moves as the library does.
class CountingMovement final : public exchange::RowMovement {
 public:
  explicit CountingMovement(const exchange::RankGroups& groups) : inner_(groups) {}
  void to_devices(const exchange::MovedRows& moved, std::span<const std::byte> out,
                  std::span<std::byte> in, comm::Purpose purpose) override {
    ++num_out;
    inner_.to_devices(moved, out, in, purpose);
  }
  void to_homes(const exchange::MovedRows& moved, std::span<std::byte> in, std::span<std::byte> out,
                comm::Purpose purpose) override {
    ++num_home;
    inner_.to_homes(moved, in, out, purpose);
  }
  int num_out = 0;
  int num_home = 0;

 private:
  exchange::GroupMovement inner_;
};

TEST(LayerBehaviour, AnotherMovementCanTakeOver) {
  RankCase made = three_ranks();
  const auto wanted = run_ranks_of(made);
  std::mutex mutex;
  std::vector<std::shared_ptr<CountingMovement>> movements;
  made.change = [&](MoELayerOptions& options) {
    auto movement =
        std::make_shared<CountingMovement>(exchange::RankGroups{options.expert_group, nullptr});
    options.movement = movement;
    options.forward_chunks = 2;
    const std::scoped_lock lock(mutex);
    movements.push_back(movement);
  };
  expect_same_bits(run_ranks_of(made), wanted, "movement");
  for (const auto& movement : movements) {
    EXPECT_EQ(movement->num_out, 3);   // two chunks forward, one backward
    EXPECT_EQ(movement->num_home, 4);  // and the gradients of the routing weights
  }
}

TEST(LayerBehaviour, EveryRankMakesTheSameCollectives) {
  std::mutex mutex;
  std::vector<std::uint64_t> counts;
  const RankCase made = three_ranks();
  comm::run_ranks(3, [&](comm::Communicator& world) {
    MoELayerOptions options = layer_options(made);
    options.expert_group = &world;
    options.forward_chunks = 3;
    MoELayer layer(options);
    run_layer(layer, batch_of(made, world.rank()), direction_of(made, world.rank()));
    const std::scoped_lock lock(mutex);
    counts.push_back(world.traffic().num_collectives);
  });
  // 3 for the lists, 2 a chunk, 2 for the backward's one chunk, 1 for the routing weights.
  EXPECT_EQ(counts, (std::vector<std::uint64_t>{12, 12, 12}));
}

TEST(LayerBehaviour, WithoutGradientsNothingIsKept) {
  MoELayer layer(layer_options(RankCase()));
  const at::NoGradGuard no_grad;
  const MoEResult result = layer->forward(batch_of(RankCase(), 0));
  EXPECT_FALSE(result.y.requires_grad());
}

}  // namespace
}  // namespace coterie::nn
