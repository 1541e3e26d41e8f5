// SPDX-License-Identifier: Apache-2.0
// Gradients of weights and biases: one chain an element, however rows, threads and calls are cut.
#include "coterie/run/kernels/weight_gradient.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/linear.hpp"
#include "tests/run/kernels/closeness.hpp"
#include "tests/run/kernels/training_layer.hpp"

namespace coterie::kernels {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBfloat16;
constexpr DType kF64 = DType::kFloat64;

/// Two sides of gradients for some experts, with row lists.
struct Sides {
  TypedMatrix a, b;
  std::vector<std::int32_t> a_rows, b_rows;
  std::vector<std::int64_t> offsets = {0};

  Sides(std::int64_t m, std::int64_t n, DType type, const std::vector<std::int64_t>& counts,
        Random& random)
      : a(31, m, type, 1), b(17, n, type, 3) {
    a.fill_normal(random);
    b.fill_normal(random);
    for (const std::int64_t count : counts) {
      offsets.push_back(offsets.back() + count);
    }
    for (std::int64_t r = 0; r < offsets.back(); ++r) {
      a_rows.push_back(static_cast<std::int32_t>(random.below(32)) - 1);
      b_rows.push_back(static_cast<std::int32_t>(random.below(18)) - 1);
    }
  }
  [[nodiscard]] std::vector<TypedMatrix> outputs(DType type) const {
    std::vector<TypedMatrix> all;
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
      all.emplace_back(a.columns(), b.columns(), type, static_cast<std::int64_t>(e) % 2);
      all.back().poison();
    }
    return all;
  }
  [[nodiscard]] GroupedWeightGradient task(const std::vector<MatrixView>& views) const {
    return {a.view(), a_rows, b.view(), b_rows, offsets, views};
  }
};

DType sum_type_of(DType type) {
  return type == kF64 ? kF64 : kF32;
}
bool has_fused_multiply_add(Backend backend) {
  return backend != Backend::kGeneric;
}

/// All back ends with fused multiply-adds give the reference's bits; the generic one comes near.
TEST(WeightGradient, AllBackendsGiveTheReferencesChain) {
  Threads threads(2);
  Random random(51);
  const std::vector<std::int64_t> row_counts[] = {
      {0, 0, 0}, {1, 0, 2}, {300, 1, 0}, {7, 0, 40}, {129, 256, 257}};
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 1}, {48, 64}, {37, 203}, {301, 50}};
  for (const auto& counts : row_counts) {
    for (const auto& [m, n] : sizes) {
      for (const DType type : {kF32, kBf16, kF64}) {
        const Sides sides(m, n, type, counts, random);
        auto wanted = sides.outputs(sum_type_of(type));
        const auto wanted_views = mutable_views(wanted);
        grouped_weight_gradient(sides.task(wanted_views), {nullptr, Backend::kReference});
        for (const Backend backend : vector_backends()) {
          auto got = sides.outputs(sum_type_of(type));
          const auto views = mutable_views(got);
          grouped_weight_gradient(sides.task(views), {&threads, backend});
          for (std::size_t e = 0; e < 3; ++e) {
            ASSERT_TRUE(has_fused_multiply_add(backend)
                            ? got[e].same_bits(wanted[e])
                            : is_close(got[e], wanted[e], type == kF64 ? 1e-13 : 1e-5, 20.0))
                << name_of(backend) << ", " << name_of(type) << " [" << m << ", " << n << "], "
                << counts[e] << " rows";
            EXPECT_TRUE(got[e].padding_is_poison());
          }
        }
      }
    }
  }
}

/// The same sums by a formula of its own: entry by entry in long double.
TEST(WeightGradient, IsTheDenseFormula) {
  Random random(52);
  const Sides sides(9, 14, kF64, {23, 0, 5}, random);
  auto got = sides.outputs(kF64);
  const auto views = mutable_views(got);
  grouped_weight_gradient(sides.task(views), {nullptr, Backend::kReference});
  for (std::size_t e = 0; e < 3; ++e) {
    for (std::int64_t m = 0; m < 9; ++m) {
      for (std::int64_t n = 0; n < 14; ++n) {
        long double sum = 0.0L;
        for (std::int64_t r = 0; r < 28; ++r) {
          const bool mine = r >= sides.offsets[e] && r < sides.offsets[e + 1];
          const std::int32_t i = sides.a_rows[static_cast<std::size_t>(r)];
          const std::int32_t j = sides.b_rows[static_cast<std::size_t>(r)];
          if (mine && i >= 0 && j >= 0) {
            sum += static_cast<long double>(sides.a.at(i, m)) * sides.b.at(j, n);
          }
        }
        EXPECT_NEAR(got[e].at(m, n), static_cast<double>(sum), 1e-13);
      }
    }
  }
}

/// The rows' order alone counts: any cut into accumulating calls gives the bits of one call.
TEST(WeightGradient, BitsSurviveAnyCutIntoCalls) {
  Threads threads(2);
  Random random(53);
  for (const DType type : {kF32, kBf16, kF64}) {
    const Sides sides(70, 110, type, {150, 0, 61}, random);
    TypedMatrix weights(211, 1, sum_type_of(type));
    weights.fill_normal(random);
    for (const Backend backend : available_backends()) {
      auto whole = sides.outputs(sum_type_of(type));
      std::vector<TypedMatrix> whole_bias(3, TypedMatrix(1, 70, sum_type_of(type)));
      const auto whole_views = mutable_views(whole), whole_biases = mutable_views(whole_bias);
      grouped_weight_gradient(sides.task(whole_views), {&threads, backend});
      grouped_bias_gradient(
          {sides.a.view(), sides.a_rows, weights.view(), sides.offsets, whole_biases},
          {&threads, backend});
      for (int round = 0; round < (backend == Backend::kReference ? 1 : 4); ++round) {
        auto parts = sides.outputs(sum_type_of(type));
        std::vector<TypedMatrix> bias(3, TypedMatrix(1, 70, sum_type_of(type)));
        const auto views = mutable_views(parts), biases = mutable_views(bias);
        std::vector<std::int64_t> done = {0, 0, 0};  // rows of each expert
        bool first = true;
        while (first || done != std::vector<std::int64_t>{150, 0, 61}) {
          std::vector<std::int32_t> a_rows, b_rows;
          std::vector<std::int64_t> offsets = {0};
          TypedMatrix some(0, 1, sum_type_of(type));
          std::vector<double> taken;
          for (std::size_t e = 0; e < 3; ++e) {
            const std::int64_t left = sides.offsets[e + 1] - sides.offsets[e] - done[e];
            const auto count = std::min<std::int64_t>(
                left, static_cast<std::int64_t>(random.below(round == 0 ? 3 : 70)));
            for (std::int64_t i = 0; i < count; ++i) {
              const auto r = static_cast<std::size_t>(sides.offsets[e] + done[e] + i);
              a_rows.push_back(sides.a_rows[r]);
              b_rows.push_back(sides.b_rows[r]);
              taken.push_back(weights.at(static_cast<std::int64_t>(r), 0));
            }
            done[e] += count;
            offsets.push_back(offsets.back() + count);
          }
          some = TypedMatrix(offsets.back(), 1, sum_type_of(type));
          for (std::size_t r = 0; r < taken.size(); ++r) {
            some.set(static_cast<std::int64_t>(r), 0, taken[r]);
          }
          grouped_weight_gradient(
              {sides.a.view(), a_rows, sides.b.view(), b_rows, offsets, views, !first},
              {&threads, backend});
          grouped_bias_gradient({sides.a.view(), a_rows, some.view(), offsets, biases, !first},
                                {&threads, backend});
          first = false;
        }
        for (std::size_t e = 0; e < 3; ++e) {
          ASSERT_TRUE(parts[e].same_bits(whole[e])) << name_of(backend) << ", " << name_of(type);
          ASSERT_TRUE(bias[e].same_bits(whole_bias[e])) << name_of(backend);
        }
      }
    }
  }
}

TEST(WeightGradient, BitsDoNotDependOnThreads) {
  Random random(54);
  const Sides sides(290, 500, kF32, {90, 0, 3, 33}, random);
  for (const Backend backend : vector_backends()) {
    auto one = sides.outputs(kF32);
    const auto one_views = mutable_views(one);
    grouped_weight_gradient(sides.task(one_views), {nullptr, backend});
    for (const int num_threads : {2, 5}) {
      Threads threads(num_threads);
      auto many = sides.outputs(kF32);
      const auto views = mutable_views(many);
      grouped_weight_gradient(sides.task(views), {&threads, backend});
      for (std::size_t e = 0; e < 4; ++e) {
        EXPECT_TRUE(many[e].same_bits(one[e])) << name_of(backend) << " " << num_threads;
      }
    }
  }
}

TEST(WeightGradient, OfAnIdleExpertIsExactlyZeroOrUntouched) {
  Random random(55);
  for (const DType type : {kF32, kBf16, kF64}) {
    Sides sides(20, 30, type, {4, 0, 3}, random);
    std::fill(sides.b_rows.begin() + 4, sides.b_rows.end(), -1);  // the third has rows for nothing
    for (const Backend backend : available_backends()) {
      auto gradients = sides.outputs(sum_type_of(type));
      auto views = mutable_views(gradients);
      grouped_weight_gradient(sides.task(views), {nullptr, backend});
      for (const std::size_t e : {1U, 2U}) {
        for (std::int64_t m = 0; m < 20; ++m) {
          for (std::int64_t n = 0; n < 30; ++n) {
            ASSERT_EQ(gradients[e].at(m, n), 0.0);
            ASSERT_FALSE(std::signbit(gradients[e].at(m, n)));
          }
        }
      }
      auto kept = sides.outputs(sum_type_of(type));
      const auto before = kept;
      views = mutable_views(kept);
      views[0].data = nullptr;  // not trained: skipped, rows or not
      GroupedWeightGradient task = sides.task(views);
      task.accumulate = true;
      grouped_weight_gradient(task, {nullptr, backend});
      for (std::size_t e = 0; e < 3; ++e) {
        EXPECT_TRUE(kept[e].same_bits(before[e])) << name_of(backend);
      }
    }
  }
}

TEST(WeightGradient, InBf16IsTheFp32SumRoundedOnce) {
  Random random(56);
  const Sides sides(33, 60, kBf16, {40, 2}, random);
  for (const Backend backend : available_backends()) {
    auto sums = sides.outputs(kF32), rounded = sides.outputs(kBf16);
    const auto sum_views = mutable_views(sums), views = mutable_views(rounded);
    grouped_weight_gradient(sides.task(sum_views), {nullptr, backend});
    grouped_weight_gradient(sides.task(views), {nullptr, backend});
    for (std::size_t e = 0; e < 2; ++e) {
      for (std::int64_t m = 0; m < 33; ++m) {
        for (std::int64_t n = 0; n < 60; ++n) {
          const auto sum = static_cast<float>(sums[e].at(m, n));
          ASSERT_EQ(rounded[e].at(m, n), static_cast<double>(from_bfloat16(to_bfloat16(sum))));
        }
      }
    }
  }
}

TEST(BiasGradient, TwinsGiveEqualBits) {
  Random random(57);
  Threads threads(3);
  for (const DType type : {kF32, kBf16, kF64}) {
    const Sides sides(1030, 1, type, {50, 0, 9}, random);
    TypedMatrix weights(59, 1, sum_type_of(type));
    weights.fill_normal(random);
    std::vector<TypedMatrix> wanted(3, TypedMatrix(1, 1030, sum_type_of(type)));
    const auto wanted_views = mutable_views(wanted);
    grouped_bias_gradient(
        {sides.a.view(), sides.a_rows, weights.view(), sides.offsets, wanted_views},
        {nullptr, Backend::kReference});
    double sum = 0.0;
    for (std::size_t r = 0; r < 50; ++r) {
      sum += sides.a_rows[r] < 0
                 ? 0.0
                 : weights.at(static_cast<std::int64_t>(r), 0) * sides.a.at(sides.a_rows[r], 1029);
    }
    EXPECT_NEAR(wanted[0].at(0, 1029), sum, type == kF64 ? 1e-13 : 1e-4);
    EXPECT_EQ(wanted[1].at(0, 5), 0.0);
    for (const Backend backend : vector_backends()) {
      std::vector<TypedMatrix> got(3, TypedMatrix(1, 1030, sum_type_of(type)));
      const auto views = mutable_views(got);
      grouped_bias_gradient({sides.a.view(), sides.a_rows, weights.view(), sides.offsets, views},
                            {&threads, backend});
      for (std::size_t e = 0; e < 3; ++e) {
        EXPECT_TRUE(got[e].same_bits(wanted[e])) << name_of(backend);
      }
    }
  }
}

TEST(LinearBackward, AllBackendsMatchTheReference) {
  Random random(58);
  Threads threads(2);
  for (int round = 0; round < 24; ++round) {
    const DType types[] = {kF32, kBf16, kF64};
    const DType type = types[round % 3];
    const auto num_rows = static_cast<std::int64_t>(random.below(round % 2 == 0 ? 8 : 170));
    const auto depth = static_cast<std::int64_t>(random.below(220)) + 1;
    const auto num_outputs = static_cast<std::int64_t>(random.below(90)) + 1;
    TypedMatrix x(num_rows, depth, type, 1), w(num_outputs, depth, type, 2),
        grad_y(num_rows, num_outputs, sum_type_of(type));
    for (TypedMatrix* matrix : {&x, &w, &grad_y}) {
      matrix->fill_normal(random);
    }
    struct Gradients {
      TypedMatrix x, w, bias;
    };
    TypedMatrix start(num_outputs, depth, sum_type_of(type), 1);
    start.fill_normal(random);
    const auto run = [&](const Execution& execution, bool accumulate) {
      Gradients out{TypedMatrix(num_rows, depth, type, 1), start,
                    TypedMatrix(1, num_outputs, sum_type_of(type))};
      out.x.poison();
      linear_backward({x.view(), w.view(), grad_y.view(), out.x.view(), out.w.view(),
                       out.bias.view(), accumulate},
                      execution);
      return out;
    };
    for (const bool accumulate : {false, true}) {
      const Gradients wanted = run({nullptr, Backend::kReference}, accumulate);
      for (const Backend backend : vector_backends()) {
        const Gradients got = run({&threads, backend}, accumulate);
        ASSERT_TRUE(is_close(got.x, wanted.x, tolerance_of(type), 10.0)) << name_of(backend);
        ASSERT_TRUE(is_close(got.w, wanted.w, type == kF64 ? 1e-13 : 1e-5, 15.0))
            << name_of(backend);
        ASSERT_TRUE(got.bias.same_bits(wanted.bias)) << name_of(backend);
      }
    }
  }
}

TEST(WeightGradient, RefusesWhatDoesNotFit) {
  const auto message_of = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return error.what();
    }
    return "no error";
  };
  Random random(59);
  const Sides sides(3, 4, kF32, {2, 1}, random);
  auto gradients = sides.outputs(kF32), rounded = sides.outputs(kBf16);
  auto views = mutable_views(gradients);
  const auto bf16_views = mutable_views(rounded);
  GroupedWeightGradient task = sides.task(views);
  EXPECT_EQ(message_of([&] { grouped_weight_gradient(task); }), "no error");
  task.gradients = bf16_views;
  EXPECT_EQ(message_of([&] { grouped_weight_gradient(task); }), "no error");
  task.accumulate = true;
  EXPECT_EQ(message_of([&] { grouped_weight_gradient(task); }),
            "grouped_weight_gradient: gradients[0] is bfloat16; accumulating needs float32 or "
            "float64");
  task = sides.task(views);
  const std::vector<std::int32_t> out_of_range = {0, 17, 1};
  task.b_rows = out_of_range;
  EXPECT_EQ(message_of([&] { grouped_weight_gradient(task); }),
            "grouped_weight_gradient: b_rows[1] is 17, outside [-1, 17)");
  task.b_rows = {};
  EXPECT_EQ(message_of([&] { grouped_weight_gradient(task); }),
            "grouped_weight_gradient: number of rows of b is 17, but the end of expert_offsets is "
            "3");
  task = sides.task(views);
  views[1].columns = 3;
  EXPECT_EQ(message_of([&] { grouped_weight_gradient(task); }),
            "grouped_weight_gradient: gradients[1] has shape [3, 3]; expected [3, 4]");
  views[1].columns = 4;
  views[1].type = kF64;
  views[1].row_stride = 2;
  EXPECT_EQ(message_of([&] { grouped_weight_gradient(task); }),
            "grouped_weight_gradient: gradients[1] has row stride 2, less than its 4 columns");
}

}  // namespace
}  // namespace coterie::kernels
