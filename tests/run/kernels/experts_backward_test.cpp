// SPDX-License-Identifier: Apache-2.0
// Backward towards inputs and routing weights: every back end against the reference, and its laws.
#include "coterie/run/kernels/experts_backward.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/linear.hpp"
#include "coterie/run/kernels/rows.hpp"
#include "tests/run/kernels/closeness.hpp"
#include "tests/run/kernels/training_layer.hpp"

namespace coterie::kernels {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBfloat16;
constexpr DType kF64 = DType::kFloat64;
constexpr Activation kActivations[] = {Activation::kSwiGlu, Activation::kGelu,
                                       Activation::kGeluTanh};

TEST(Activations, OfAllBackendsMatchTheReferenceAndSaveWhatTheyWereGiven) {
  Threads threads(2);
  Random random(41);
  for (const DType type : {kF32, kBf16, kF64}) {
    for (const Activation activation : kActivations) {
      for (const bool with_bias : {false, true}) {
        const TrainingLayer layer({45, 101, type, activation, with_bias}, 30, {2, 0, 40, 7},
                                  random);
        TypedMatrix hidden(0, 0, type), rows(0, 0, type);
        const TypedMatrix pre = layer.forward({nullptr, Backend::kReference}, &hidden, &rows);
        for (const Backend backend : vector_backends()) {
          TypedMatrix got_hidden(0, 0, type), got_rows(0, 0, type);
          const TypedMatrix got = layer.forward({&threads, backend}, &got_hidden, &got_rows);
          const double tolerance = tolerance_of(type);
          ASSERT_TRUE(is_close(got, pre, tolerance, 1.0)) << name_of(backend);
          ASSERT_TRUE(is_close(got_hidden, hidden, tolerance, 1.0)) << name_of(backend);
          ASSERT_TRUE(is_close(got_rows, rows, 2 * tolerance, 1.0)) << name_of(backend);
          EXPECT_TRUE(got.padding_is_poison() && got_hidden.padding_is_poison());
        }
      }
    }
  }
}

/// Points far out, where exponentials over- and underflow.
TEST(Activations, AndTheirSlopesHoldAtTheEnds) {
  const double points[] = {-1e30, -200.0, -90.0, -20.0, -5.0,  -1e-3, 0.0,
                           1e-3,  5.0,    20.0,  90.0,  200.0, 1e18};
  const std::int64_t count = std::size(points);
  for (const Activation activation : kActivations) {
    const std::int64_t parts = pre_activations_per_hidden(activation);
    TypedMatrix pre(1, parts * count, kF32), down(1, count, kF32), g(1, 1, kF32);
    g.set(0, 0, 1.0);
    for (std::int64_t i = 0; i < count; ++i) {
      pre.set(0, i, points[i]);
      down.set(0, i, 1.0);
      if (parts == 2) {
        pre.set(0, i + count, 0.75);
      }
    }
    const std::vector<std::int64_t> offsets = {0, 1};
    const std::vector<ConstMatrixView> weights = {std::as_const(down).view()};
    const auto run = [&](Backend backend) {
      std::pair out{TypedMatrix(1, parts * count, kF32), TypedMatrix(1, count, kF32)};
      GroupedDownBackward task;
      task.grad_rows = std::as_const(g).view();
      task.expert_offsets = offsets;
      task.down = weights;
      task.pre = std::as_const(pre).view();
      task.activation = activation;
      task.grad_pre = out.first.view();
      task.hidden = out.second.view();
      grouped_down_backward(task, {nullptr, backend});
      return out;
    };
    const auto wanted = run(Backend::kReference);
    for (const Backend backend : vector_backends()) {
      const auto got = run(backend);
      EXPECT_TRUE(is_close(got.first, wanted.first, 1e-6, 1.0)) << name_of(activation);
      EXPECT_TRUE(is_close(got.second, wanted.second, 1e-6, 1e-30 + 1.0)) << name_of(activation);
    }
  }
}

TEST(ExpertsBackward, AllBackendsMatchTheReferenceOnEmptyRaggedAndSkewedRows) {
  Threads threads(2);
  Random random(42);
  const std::vector<std::int64_t> row_counts[] = {
      {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 5, 3, 0}, {150, 1, 0, 2}, {6, 7, 33, 65}};
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{64, 48}, {37, 29}, {270, 101}};
  for (const auto& counts : row_counts) {
    for (const auto& [hidden, inner] : sizes) {
      for (const DType type : {kF32, kBf16, kF64}) {
        const Activation activation = kActivations[random.below(3)];
        const TrainingLayer layer({hidden, inner, type, activation, random.below(2) == 0}, 23,
                                  counts, random);
        const TypedMatrix pre = layer.forward({nullptr, Backend::kReference});
        const LayerGradients wanted = layer.backward(pre, {nullptr, Backend::kReference});
        for (const Backend backend : vector_backends()) {
          const LayerGradients got = layer.backward(pre, {&threads, backend});
          const double tolerance = tolerance_of(type);
          const std::string where = std::string(name_of(backend)) + ", " + name_of(type) + ", " +
                                    name_of(activation) + ", " + std::to_string(hidden);
          ASSERT_TRUE(is_close(got.grad_pre, wanted.grad_pre, tolerance, 3.0)) << where;
          ASSERT_TRUE(is_close(got.hidden, wanted.hidden, tolerance, 1.0)) << where;
          ASSERT_TRUE(is_close(got.grad_weights, wanted.grad_weights,
                               type == kF64 ? tolerance : 1e-5, 30.0))
              << where;
          ASSERT_TRUE(is_close(got.grad_x_rows, wanted.grad_x_rows, 2 * tolerance, 3.0)) << where;
          EXPECT_TRUE(got.grad_pre.padding_is_poison() && got.hidden.padding_is_poison() &&
                      got.grad_x_rows.padding_is_poison());
        }
      }
    }
  }
}

/// The forward's hidden rows come back from its saved pre-activations, bit for bit.
TEST(ExpertsBackward, RecomputesTheForwardsHiddenRows) {
  Random random(43);
  for (const DType type : {kF32, kF64}) {
    for (const Activation activation : kActivations) {
      TrainingLayer layer({50, 77, type, activation, true}, 19, {3, 25}, random);
      for (std::int64_t r = 0; r < layer.num_rows(); ++r) {
        layer.weights.set(r, 0, 1.0);
      }
      for (const Backend backend : available_backends()) {
        TypedMatrix hidden(0, 0, type);
        const TypedMatrix pre = layer.forward({nullptr, backend}, &hidden);
        const LayerGradients got = layer.backward(pre, {nullptr, backend});
        for (std::int64_t r = 0; r < layer.num_rows() && backend != Backend::kReference; ++r) {
          for (std::int64_t c = 0; c < 77; ++c) {
            ASSERT_EQ(got.hidden.at(r, c), hidden.at(r, c)) << name_of(backend);
          }
        }
      }
    }
  }
}

/// A row alone, in the first rows' place, has the bits that it has among many, on any threads.
TEST(ExpertsBackward, BitsOfARowDependOnNeitherRowsNorThreads) {
  Random random(44);
  for (const DType type : {kF32, kBf16, kF64}) {
    const Activation activation = kActivations[random.below(3)];
    TrainingLayer layer({333, 130, type, activation, true}, 50, {4, 160}, random);
    layer.token_of[100] = 17;
    TrainingLayer alone = layer;
    alone.offsets = {0, 0, 1};
    alone.token_of = {17};
    alone.weights = TypedMatrix(1, 1, layer.sum_type());
    alone.weights.set(0, 0, layer.weights.at(100, 0));
    for (const Backend backend : available_backends()) {
      const TypedMatrix pre = layer.forward({nullptr, backend});
      const LayerGradients first = layer.backward(pre, {nullptr, backend});
      for (const int num_threads : {2, 5}) {
        Threads threads(num_threads);
        const LayerGradients again = layer.backward(pre, {&threads, backend});
        EXPECT_TRUE(again.grad_pre.same_bits(first.grad_pre)) << name_of(backend);
        EXPECT_TRUE(again.hidden.same_bits(first.hidden)) << name_of(backend);
        EXPECT_TRUE(again.grad_weights.same_bits(first.grad_weights)) << name_of(backend);
        EXPECT_TRUE(again.grad_x_rows.same_bits(first.grad_x_rows)) << name_of(backend);
      }
      const TypedMatrix one_pre = alone.forward({nullptr, backend});
      const LayerGradients one = alone.backward(one_pre, {nullptr, backend});
      EXPECT_EQ(one.grad_weights.at(0, 0), first.grad_weights.at(100, 0)) << name_of(backend);
      for (std::int64_t c = 0; c < 333; ++c) {
        ASSERT_EQ(one.grad_x_rows.at(0, c), first.grad_x_rows.at(100, c)) << name_of(backend);
      }
    }
  }
}

TEST(ExpertsBackward, MayOverwriteThePreActivations) {
  Random random(45);
  const TrainingLayer layer({40, 110, kBf16, Activation::kSwiGlu, false}, 12, {20, 3}, random);
  const auto down_views = const_views(layer.down);
  for (const Backend backend : available_backends()) {
    TypedMatrix pre = layer.forward({nullptr, backend});
    const LayerGradients wanted = layer.backward(pre, {nullptr, backend});
    GroupedDownBackward task;
    task.grad_rows = layer.grad_y.view();
    task.row_of = layer.token_of;
    task.weights = layer.weights.view();
    task.expert_offsets = layer.offsets;
    task.down = down_views;
    task.pre = pre.view();
    task.grad_pre = pre.view();
    grouped_down_backward(task, {nullptr, backend});
    for (std::int64_t r = 0; r < layer.num_rows(); ++r) {
      for (std::int64_t c = 0; c < 220; ++c) {
        ASSERT_EQ(pre.at(r, c), wanted.grad_pre.at(r, c)) << name_of(backend);
      }
    }
  }
}

/// NaN weights of one expert touch its own rows only, and not those without a token.
TEST(ExpertsBackward, NanStaysWithItsExpertAndAbsentRowsAreZero) {
  Random random(46);
  for (const DType type : {kF32, kBf16, kF64}) {
    TrainingLayer layer({50, 31, type, Activation::kGelu, true}, 9, {20, 4, 9}, random);
    layer.token_of[21] = -1;
    layer.token_of[22] = 3;
    for (const Backend backend : available_backends()) {
      Threads threads(2);
      const TypedMatrix pre = layer.forward({&threads, backend});
      const LayerGradients clean = layer.backward(pre, {&threads, backend});
      TrainingLayer bad = layer;
      bad.down[1].poison();
      bad.up[1].poison();
      const LayerGradients got = bad.backward(pre, {&threads, backend});
      for (std::int64_t r = 0; r < 33; ++r) {
        for (std::int64_t c = 0; c < 50; ++c) {
          const double value = got.grad_x_rows.at(r, c);
          if (r >= 20 && r < 24 && layer.token_of[static_cast<std::size_t>(r)] >= 0) {
            EXPECT_TRUE(std::isnan(value));
          } else if (r < 20 || r >= 24) {
            ASSERT_EQ(value, clean.grad_x_rows.at(r, c)) << name_of(backend);
          }
        }
      }
      EXPECT_EQ(got.grad_weights.at(21, 0), 0.0);
      EXPECT_EQ(got.hidden.at(21, 5), 0.0);
      EXPECT_EQ(got.grad_pre.at(21, 5), 0.0);
      EXPECT_TRUE(std::isnan(got.grad_weights.at(22, 0)));
    }
  }
}

/// A rank that got no rows still has tokens.
TEST(ExpertsBackward, TakesNoRowsBesideSomeTokens) {
  Random random(49);
  const TrainingLayer layer({6, 4, kF32, Activation::kGelu, true}, 5, {0, 0}, random);
  for (const Backend backend : available_backends()) {
    const TypedMatrix pre = layer.forward({nullptr, backend});
    const LayerGradients got = layer.backward(pre, {nullptr, backend});
    for (std::int64_t c = 0; c < 6; ++c) {
      EXPECT_EQ(got.up[1].at(2, c), 0.0);
      EXPECT_EQ(got.down_bias[0].at(0, c), 0.0);
    }
  }
}

TEST(DotRows, OfAllBackendsMatchTheReference) {
  Random random(47);
  Threads threads(3);
  for (const DType type : {kF32, kBf16, kF64}) {
    for (const std::int64_t columns : {0, 1, 7, 8, 300}) {
      TypedMatrix a(5, columns, type, 1), b(9, columns, type, 2);
      a.fill_normal(random);
      b.fill_normal(random);
      const std::vector<std::int32_t> a_rows = {4, 0, -1, 2}, b_rows = {8, 8, 1, -1};
      const DType sum_type = type == kF64 ? kF64 : kF32;
      TypedMatrix wanted(4, 1, sum_type);
      dot_rows(a.view(), b.view(), {a_rows, b_rows}, wanted.view(), {nullptr, Backend::kReference});
      EXPECT_EQ(wanted.at(2, 0), 0.0);
      EXPECT_EQ(wanted.at(3, 0), 0.0);
      for (const Backend backend : vector_backends()) {
        TypedMatrix got(4, 1, sum_type);
        got.poison();
        dot_rows(a.view(), b.view(), {a_rows, b_rows}, got.view(), {&threads, backend});
        EXPECT_TRUE(is_close(got, wanted, type == kF64 ? 1e-14 : 1e-7, 20.0)) << name_of(backend);
      }
    }
  }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  return "no error";
}

TEST(ExpertsBackward, RefusesWhatDoesNotFit) {
  Random random(48);
  const TrainingLayer layer({6, 4, kF32, Activation::kSwiGlu, false}, 5, {2, 1}, random);
  const TypedMatrix pre(3, 8, kF32), narrow(3, 7, kF32), wide(3, 8, kF64), bf16(3, 1, kBf16);
  TypedMatrix grad_pre(3, 8, kF32), short_pre(2, 8, kF32);
  const auto down_views = const_views(layer.down), up_views = const_views(layer.up);
  GroupedDownBackward task;
  task.grad_rows = layer.grad_y.view();
  task.row_of = layer.token_of;
  task.expert_offsets = layer.offsets;
  task.down = down_views;
  task.pre = pre.view();
  task.grad_pre = grad_pre.view();
  const auto refusal = [&](const auto& change) {
    GroupedDownBackward wrong = task;
    change(wrong);
    return message_of([&] { grouped_down_backward(wrong); });
  };
  EXPECT_EQ(refusal([](auto&) {}), "no error");
  EXPECT_EQ(refusal([&](auto& t) { t.pre = narrow.view(); }),
            "grouped_down_backward: pre has 7 columns, an odd number; swiglu needs two halves");
  EXPECT_EQ(refusal([&](auto& t) { t.pre = wide.view(); }),
            "grouped_down_backward: pre is float64; float64 does not mix with the others");
  EXPECT_EQ(refusal([&](auto& t) { t.grad_pre = short_pre.view(); }),
            "grouped_down_backward: grad_pre has shape [2, 8]; expected [3, 8]");
  EXPECT_EQ(refusal([&](auto& t) { t.weights = bf16.view(); }),
            "grouped_down_backward: weights is bfloat16; expected float32 or float64");
  EXPECT_EQ(refusal([&](auto& t) { t.row_of = {}; }),
            "grouped_down_backward: number of rows of grad_rows (row_of is empty) is 5, but number "
            "of rows of pre is 3");
  EXPECT_EQ(refusal([&](auto& t) { t.down = up_views; }),
            "grouped_down_backward: down[0] has shape [8, 6]; expected [6, 4]");
  TypedMatrix grad_x(3, 5, kF32);
  EXPECT_EQ(message_of([&] {
              grouped_up_backward({grad_pre.view(), layer.offsets, up_views, grad_x.view()});
            }),
            "grouped_up_backward: gate_up[0] has shape [8, 6]; expected [8, 5]");
  TypedMatrix grad_w(7, 6, kF32);
  const TypedMatrix w(7, 6, kF32), x(4, 6, kF32), grad_y(4, 6, kF32);
  EXPECT_EQ(message_of([&] {
              linear_backward({x.view(), w.view(), grad_y.view(), {}, grad_w.view(), {}, false});
            }),
            "linear_backward: grad_y has shape [4, 6]; expected [4, 7]");
  EXPECT_EQ(message_of([] { parse_activation("relu", "config.json: experts"); }),
            "config.json: experts is \"relu\"; expected swiglu, gelu or gelu_tanh");
  EXPECT_EQ(parse_activation("gelu_tanh", "flag"), Activation::kGeluTanh);
}

}  // namespace
}  // namespace coterie::kernels
