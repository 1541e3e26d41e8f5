// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gradients/gradients.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/run/layer/layer.hpp"
#include "tests/run/layer/lane_plans.hpp"
#include "tests/run/layer/training_case.hpp"

namespace coterie::gradients {
namespace {

using parallel::Numbers;
using parallel::SumType;
using schedule::GradientMethod;

constexpr int kLayers = 5;

/// Gradients of some tensors a layer, of two types, different on every rank.
struct Gradients {
  std::vector<std::vector<std::vector<std::byte>>> bytes;  // [layers][tensors]

  explicit Gradients(int rank) {
    Random sizes(4, 0);
    Random random(4, 1 + static_cast<std::uint64_t>(rank));
    for (int layer = 0; layer < kLayers; ++layer) {
      bytes.emplace_back();
      for (int tensor = 0; tensor < 3; ++tensor) {
        const std::uint64_t count = sizes.below(300);
        std::vector<std::byte> values(count * (tensor == 2 ? 2 : 4));
        for (std::uint64_t i = 0; i < count; ++i) {
          const auto value = static_cast<float>(random.normal());
          const std::uint16_t half = kernels::to_bfloat16(value);
          std::memcpy(values.data() + i * (tensor == 2 ? 2 : 4),
                      tensor == 2 ? static_cast<const void*>(&half) : &value, tensor == 2 ? 2 : 4);
        }
        bytes.back().push_back(std::move(values));
      }
    }
  }
  Numbers numbers(int layer, int tensor) {
    auto& values = bytes[static_cast<std::size_t>(layer)][static_cast<std::size_t>(tensor)];
    const SumType type = tensor == 2 ? SumType::kBfloat16 : SumType::kFloat32;
    return {values.data(), std::ssize(values) / parallel::size_of(type), type};
  }
  [[nodiscard]] double layer_bytes(std::size_t layer) const {
    double sum = 0;
    for (const auto& tensor : bytes[layer]) {
      sum += static_cast<double>(tensor.size());
    }
    return sum;
  }
};

/// Windows of different lengths, so that all three methods cut somewhere.
schedule::GradientPartition partition_of(const Gradients& gradients, GradientMethod method) {
  std::vector<schedule::GradientLayer> layers;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const double window_s = layer % 2 == 0 ? 3e-4 : 6e-4;
    layers.push_back({gradients.layer_bytes(layer), layer == 3 ? 0 : 7e-4,
                      [window_s](double s) { return 1e-3 + std::max(0.0, s - window_s); }});
  }
  return schedule::partition_gradients(layers, cost::CostModel(1e-4, 1e-6), {method, 500.0, 1});
}

enum class Gaps { kInLanes, kNone };

/// A backward pass; the MoE parts are real layers in lanes.
void run_pass(Gradients& gradients, GradientSender& sender, Gaps gaps) {
  class Slots final : public layer::IdleSlots {
   public:
    explicit Slots(GradientSender& sender) : sender_(sender) {}
    void run_piece(std::int32_t) override { sender_.send_moe(); }

   private:
    GradientSender& sender_;
  };
  Slots slots(sender);
  const layer::TrainingCase made =
      layer::training_case(3, 1, kernels::DType::kFloat32, kernels::Activation::kSwiGlu);
  sender.begin_pass();
  for (int layer = 0; layer < kLayers; ++layer) {
    sender.begin_moe(layer);
    layer::TrainingRun run;
    run.end_token = made.num_tokens();
    run.plan = schedule::plan_layer(schedule::kSequential, layer::lane_work(1), {});
    if (gaps == Gaps::kInLanes) {
      run.plan->backward.moe_gradients = {1};
      run.plan->backward.lane_orders = {"E1", "D1 G1 C1", "AG1 RS1"};
    }
    run.layer_run.slots = &slots;
    layer::run_training(made, run);
    sender.begin_dense(layer);
    sender.end_dense();
    for (int tensor = 0; tensor < 3; ++tensor) {
      sender.add(gradients.numbers(layer, tensor));
    }
  }
  sender.end_pass();
}

TEST(Gradients, NoCutChangesABit) {
  comm::run_ranks(4, [&](comm::Communicator& group) {
    Gradients wanted(group.rank());
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int tensor = 0; tensor < 3; ++tensor) {
        parallel::all_reduce(group, wanted.numbers(layer, tensor));
      }
    }
    for (const auto method :
         {GradientMethod::kGreedy, GradientMethod::kTwoStep, GradientMethod::kFixedPieces}) {
      for (const Gaps gaps : {Gaps::kInLanes, Gaps::kNone}) {
        Gradients gradients(group.rank());
        GradientSender sender(group);
        const auto partition = partition_of(gradients, method);
        sender.set_partition(partition);
        run_pass(gradients, sender, gaps);
        EXPECT_EQ(gradients.bytes, wanted.bytes) << schedule::name_of(method);
        double total = 0;
        for (std::size_t layer = 0; layer < kLayers; ++layer) {
          total += gradients.layer_bytes(layer);
        }
        const auto& sent = sender.sent();
        EXPECT_EQ(sent.moe + sent.dense + sent.last, total);
        EXPECT_LT(sent.last, total) << schedule::name_of(method);
        EXPECT_EQ(sent.moe > 0, gaps == Gaps::kInLanes) << schedule::name_of(method);
      }
    }
  });
}

TEST(Gradients, WithoutAPartitionAllIsSummedAtTheEnd) {
  comm::run_ranks(2, [&](comm::Communicator& group) {
    std::vector<float> values = {1.0F + static_cast<float>(group.rank()), 5.0F};
    GradientSender sender(group);
    for (int pass = 0; pass < 2; ++pass) {
      sender.begin_pass();
      sender.begin_moe(0);
      sender.send_moe();
      sender.begin_dense(0);
      sender.end_dense();
      sender.add({values.data(), 2, SumType::kFloat32});
      sender.end_pass();
      EXPECT_EQ(sender.sent(), (GradientSender::Sent{0, 0, 8}));
    }
    EXPECT_EQ(values, (std::vector<float>{6, 20}));
  });
}

TEST(GradientQueue, CutsAtElementsAndTypes) {
  GradientQueue queue;
  std::vector<float> a(3);
  std::vector<std::uint16_t> b(5);
  queue.add({a.data(), 3, SumType::kFloat32});
  queue.add({a.data(), 0, SumType::kFloat32});
  queue.add({b.data(), 5, SumType::kBfloat16});
  EXPECT_EQ(queue.bytes(), 22);
  EXPECT_TRUE(queue.take(0).empty());
  auto pieces = queue.take(5);  // up to the next element
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].bytes(), 8);
  pieces = queue.take(7);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].bytes(), 4);
  EXPECT_EQ(pieces[1].bytes(), 4);
  pieces = queue.take(1e9);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].bytes(), 6);
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_THROW(queue.add({nullptr, 2, SumType::kFloat32}), Error);
}

}  // namespace
}  // namespace coterie::gradients
