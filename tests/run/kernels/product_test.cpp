// SPDX-License-Identifier: Apache-2.0
// The products of linear, grouped_up and grouped_down: every back end against the reference.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/experts.hpp"
#include "coterie/run/kernels/linear.hpp"
#include "coterie/run/kernels/rows.hpp"
#include "tests/run/kernels/closeness.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

namespace coterie::kernels {
namespace {

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBfloat16;

/// One layer's experts with random rows an expert: empty, single, ragged or skewed.
struct Experts {
  std::int64_t num_experts, hidden_size, inner_size;
  std::vector<TypedMatrix> gate_up, down;
  std::vector<ConstMatrixView> gate_up_views, down_views;
  std::vector<std::int64_t> offsets = {0};

  Experts(std::int64_t experts, std::int64_t hidden, std::int64_t inner, DType type, Random& random)
      : num_experts(experts), hidden_size(hidden), inner_size(inner) {
    for (std::int64_t e = 0; e < experts; ++e) {
      gate_up.emplace_back(2 * inner, hidden, type, e % 3);
      gate_up.back().fill_normal(random, 1.0 / std::sqrt(static_cast<double>(hidden)));
      down.emplace_back(hidden, inner, type, e % 2);
      down.back().fill_normal(random, 1.0 / std::sqrt(static_cast<double>(inner)));
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      gate_up_views.push_back(std::as_const(gate_up[static_cast<std::size_t>(e)]).view());
      down_views.push_back(std::as_const(down[static_cast<std::size_t>(e)]).view());
    }
  }
  void add_rows(std::initializer_list<std::int64_t> counts) {
    for (const std::int64_t count : counts) {
      offsets.push_back(offsets.back() + count);
    }
  }
  [[nodiscard]] std::int64_t num_rows() const { return offsets.back(); }
};

struct Outputs {
  TypedMatrix hidden, rows;
};

Outputs run_experts(const Experts& experts, const TypedMatrix& x,
                    const std::vector<std::int32_t>& row_of, DType hidden_type,
                    const Execution& execution) {
  Outputs out{TypedMatrix(experts.num_rows(), experts.inner_size, hidden_type, 1),
              TypedMatrix(experts.num_rows(), experts.hidden_size, kF32, 2)};
  out.hidden.poison();
  out.rows.poison();
  GroupedUp up;
  up.x = x.view();
  up.row_of = row_of;
  up.expert_offsets = experts.offsets;
  up.gate_up = experts.gate_up_views;
  up.hidden = out.hidden.view();
  grouped_up(up, execution);
  grouped_down({out.hidden.view(), experts.offsets, experts.down_views, out.rows.view()},
               execution);
  return out;
}

std::vector<std::int32_t> random_rows(std::int64_t count, std::int64_t num_tokens, Random& random) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  for (std::int32_t& row : rows) {
    row = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(num_tokens)));
  }
  return rows;
}

TEST(Product, ForcedBackendReallyRuns) {
  Random random(1);
  TypedMatrix x(3, 40, kF32), w(5, 40, kF32), y(3, 5, kF32);
  x.fill_normal(random);
  w.fill_normal(random);
  for (const Backend backend : available_backends()) {
    for (const bool by_environment : {false, true}) {
      const std::uint64_t before = num_products_run(backend);
      std::vector<std::uint64_t> others;
      for (const Backend other : available_backends()) {
        others.push_back(num_products_run(other));
      }
      if (by_environment) {
        ASSERT_EQ(setenv("COTERIE_KERNELS", name_of(backend), 1), 0);
      }
      linear(x.view(), w.view(), y.view(),
             {nullptr, by_environment ? Backend::kAutomatic : backend});
      unsetenv("COTERIE_KERNELS");
      EXPECT_GT(num_products_run(backend), before) << name_of(backend);
      std::size_t i = 0;
      for (const Backend other : available_backends()) {
        EXPECT_TRUE(other == backend || num_products_run(other) == others[i]) << name_of(other);
        ++i;
      }
    }
  }
}

TEST(Product, RefusesBackendsThatAreNotThere) {
  const auto error_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.what();
    }
    return std::string("no error");
  };
  setenv("COTERIE_KERNELS", "avx3", 1);
  EXPECT_EQ(error_of([] { resolve_backend(Backend::kAutomatic); }),
            "bad_input: COTERIE_KERNELS is \"avx3\"; expected automatic, reference, generic, avx2, "
            "avx512 or avx512_bf16");
  EXPECT_EQ(resolve_backend(Backend::kGeneric), Backend::kGeneric) << "an argument wins";
  setenv("COTERIE_KERNELS", "", 1);
  EXPECT_EQ(resolve_backend(Backend::kAutomatic), available_backends().back());
  for (const Backend backend : {Backend::kAvx2, Backend::kAvx512, Backend::kAvx512Bf16}) {
    setenv("COTERIE_KERNELS", name_of(backend), 1);
    if (is_available(backend)) {
      EXPECT_EQ(resolve_backend(Backend::kAutomatic), backend);
    } else {
      const std::string best = name_of(available_backends().back());
      EXPECT_EQ(error_of([] { resolve_backend(Backend::kAutomatic); }),
                std::string("unsupported: COTERIE_KERNELS: this machine cannot run ") +
                    name_of(backend) + "; its best is " + best);
      EXPECT_EQ(error_of([&] { resolve_backend(backend); }),
                std::string("unsupported: kernel back end: this machine cannot run ") +
                    name_of(backend) + "; its best is " + best);
    }
  }
  unsetenv("COTERIE_KERNELS");
  EXPECT_EQ(parse_backend("avx512_bf16", "flag"), Backend::kAvx512Bf16);
}

// fp32: 1e-5 relative to the scale of the outputs. bf16 inputs are exact in fp32, so the same holds
// for fp32 outputs; vdpbf16ps, too, adds in fp32. bf16 outputs: one rounding more, 2^-8 relative.
TEST(Linear, AllBackendsMatchTheReferenceOnRandomShapes) {
  Threads threads(3);
  Random random(2);
  for (int round = 0; round < 40; ++round) {
    const auto num_rows = static_cast<std::int64_t>(random.below(round % 4 == 0 ? 150 : 20));
    const auto depth = static_cast<std::int64_t>(random.below(round % 5 == 0 ? 1100 : 90));
    const auto num_outputs = static_cast<std::int64_t>(random.below(round % 3 == 0 ? 210 : 30));
    const DType types[2] = {kF32, kBf16};
    const DType x_type = types[round % 2], w_type = types[round / 2 % 2],
                y_type = types[round / 4 % 2];
    TypedMatrix x(num_rows, depth, x_type, round % 3), w(num_outputs, depth, w_type, round % 4);
    x.fill_normal(random);
    w.fill_normal(random);
    TypedMatrix wanted(num_rows, num_outputs, y_type, 1);
    wanted.poison();
    linear(x.view(), w.view(), wanted.view(), {&threads, Backend::kReference});
    for (const Backend backend : vector_backends()) {
      TypedMatrix y(num_rows, num_outputs, y_type, 1);
      y.poison();
      linear(x.view(), w.view(), y.view(), {&threads, backend});
      ASSERT_TRUE(
          is_close(y, wanted, y_type == kF32 ? 1e-5 : 8e-3, std::sqrt(static_cast<double>(depth))))
          << name_of(backend) << " [" << num_rows << ", " << depth << "] x " << num_outputs;
      EXPECT_TRUE(y.padding_is_poison());
    }
  }
}

TEST(Experts, AllBackendsMatchTheReferenceOnEmptyRaggedAndSkewedRows) {
  Threads threads(2);
  Random random(3);
  const std::initializer_list<std::int64_t> row_counts[] = {
      {0, 0, 0, 0}, {1, 0, 0, 0}, {0, 5, 3, 0}, {70, 1, 0, 2}, {4, 4, 4, 4}, {16, 17, 33, 65}};
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{64, 32}, {37, 29}, {256, 51}};
  for (const auto& counts : row_counts) {
    for (const auto& [hidden, inner] : sizes) {
      for (const DType type : {kF32, kBf16}) {
        Experts experts(4, hidden, inner, type, random);
        experts.add_rows(counts);
        TypedMatrix x(23, hidden, type, 3);
        x.fill_normal(random);
        const std::vector<std::int32_t> row_of = random_rows(experts.num_rows(), 23, random);
        if (row_of.empty()) {
          continue;
        }
        const Outputs wanted =
            run_experts(experts, x, row_of, type, {nullptr, Backend::kReference});
        for (const Backend backend : vector_backends()) {
          const Outputs got = run_experts(experts, x, row_of, type, {&threads, backend});
          const double tolerance = type == kF32 ? 1e-5 : 8e-3;
          ASSERT_TRUE(is_close(got.hidden, wanted.hidden, tolerance, 1.0)) << name_of(backend);
          ASSERT_TRUE(is_close(got.rows, wanted.rows, 2 * tolerance, 1.0)) << name_of(backend);
          EXPECT_TRUE(got.hidden.padding_is_poison() && got.rows.padding_is_poison());
        }
      }
    }
  }
}

TEST(Experts, TakeNoRowsAtAll) {
  Random random(4);
  Experts experts(2, 16, 8, kF32, random);
  experts.add_rows({0, 0});
  TypedMatrix hidden(0, 8, kF32), rows(0, 16, kF32), x(0, 16, kF32);
  for (const Backend backend : available_backends()) {
    GroupedUp up;
    up.x = x.view();
    up.expert_offsets = experts.offsets;
    up.gate_up = experts.gate_up_views;
    up.hidden = hidden.view();
    EXPECT_NO_THROW(grouped_up(up, {nullptr, backend}));
    EXPECT_NO_THROW(grouped_down({hidden.view(), experts.offsets, experts.down_views, rows.view()},
                                 {nullptr, backend}));
  }
}

TEST(Experts, AnAbsentRowGivesExactZeroEvenAgainstNan) {
  Random random(5);
  Experts experts(1, 24, 13, kF32, random);
  experts.add_rows({3});
  experts.gate_up[0].set(4, 7, std::numeric_limits<float>::quiet_NaN());
  TypedMatrix x(2, 24, kF32);
  x.fill_normal(random);
  for (const Backend backend : available_backends()) {
    const Outputs out = run_experts(experts, x, {0, -1, 1}, kF32, {nullptr, backend});
    for (std::int64_t c = 0; c < 13; ++c) {
      EXPECT_EQ(out.hidden.at(1, c), 0.0F);
      EXPECT_EQ(std::isnan(out.hidden.at(0, c)), c == 4);
    }
    EXPECT_EQ(out.rows.at(1, 0), 0.0F);
  }
}

TEST(Experts, NanInOneExpertsWeightsDoesNotLeak) {
  Random random(6);
  for (const DType type : {kF32, kBf16}) {
    Experts experts(3, 50, 31, type, random);
    experts.add_rows({20, 3, 1});
    TypedMatrix x(9, 50, type);
    x.fill_normal(random);
    const std::vector<std::int32_t> row_of = random_rows(24, 9, random);
    for (const Backend backend : available_backends()) {
      Threads threads(2);
      const Execution execution{&threads, backend};
      const Outputs clean = run_experts(experts, x, row_of, type, execution);
      Experts poisoned = experts;
      poisoned.gate_up[1].poison();
      poisoned.down[1].poison();
      for (std::size_t e = 0; e < 3; ++e) {
        poisoned.gate_up_views[e].data = poisoned.gate_up[e].view().data;
        poisoned.down_views[e].data = poisoned.down[e].view().data;
      }
      const Outputs out = run_experts(poisoned, x, row_of, type, execution);
      for (std::int64_t r = 0; r < 24; ++r) {
        for (std::int64_t c = 0; c < 50; ++c) {
          if (r >= 20 && r < 23) {
            EXPECT_TRUE(std::isnan(out.rows.at(r, c)));
          } else {
            ASSERT_EQ(out.rows.at(r, c), clean.rows.at(r, c)) << name_of(backend);
          }
        }
      }
    }
  }
}

/// The bits of a row alone, among n rows, at any place, on any number of threads.
TEST(Product, BitsOfARowDependOnNeitherRowsNorThreads) {
  Random random(7);
  const std::int64_t depth = 333, num_outputs = 101, num_rows = 150;
  for (const DType type : {kF32, kBf16}) {
    TypedMatrix x(num_rows, depth, type), w(num_outputs, depth, type);
    x.fill_normal(random);
    w.fill_normal(random);
    for (const Backend backend : available_backends()) {
      TypedMatrix alone(num_rows, num_outputs, kF32);
      alone.poison();
      for (std::int64_t r = 0; r < num_rows; ++r) {
        const ConstMatrixView one(x.view().row<char>(0) + r * depth * size_of(type), 1, depth,
                                  depth, type);
        const MatrixView out{alone.view().row<float>(r), 1, num_outputs, num_outputs, kF32};
        linear(one, w.view(), out, {nullptr, backend});
      }
      for (const int num_threads : {1, 2, 3}) {
        Threads threads(num_threads);
        for (std::int64_t count = 1; count <= num_rows; count += count < 70 ? 1 : 40) {
          if (backend == Backend::kReference && count % 23 != 0) {
            continue;
          }
          const std::int64_t first = (count * 7) % (num_rows - count + 1);
          TypedMatrix y(count, num_outputs, kF32);
          y.poison();
          const ConstMatrixView some(x.view().row<char>(0) + first * depth * size_of(type), count,
                                     depth, depth, type);
          linear(some, w.view(), y.view(), {&threads, backend});
          for (std::int64_t r = 0; r < count; ++r) {
            for (std::int64_t c = 0; c < num_outputs; ++c) {
              ASSERT_EQ(y.at(r, c), alone.at(first + r, c))
                  << name_of(backend) << " row " << r << " of " << count << ", " << num_threads
                  << " threads";
            }
          }
        }
      }
    }
  }
}

TEST(Product, BitsOfAnExpertsRowDependOnNothingElse) {
  Random random(8);
  for (const DType type : {kF32, kBf16}) {
    Experts experts(3, 130, 77, type, random);
    TypedMatrix x(100, 130, type);
    x.fill_normal(random);
    for (const Backend backend : vector_backends()) {
      Experts one = experts;
      one.offsets = {0, 0, 1, 1};
      const Outputs alone = run_experts(one, x, {41}, type, {nullptr, backend});
      for (const std::int64_t count : {2, 3, 5, 8, 15, 16, 17, 31, 64, 65, 99}) {
        Threads threads(count % 2 == 0 ? 2 : 3);
        Experts many = experts;
        many.offsets = {0, 3, 3 + count, 5 + count};
        std::vector<std::int32_t> row_of = random_rows(5 + count, 100, random);
        const std::int64_t at = 3 + count / 2;
        row_of[static_cast<std::size_t>(at)] = 41;
        const Outputs out = run_experts(many, x, row_of, type, {&threads, backend});
        for (std::int64_t c = 0; c < 130; ++c) {
          ASSERT_EQ(out.rows.at(at, c), alone.rows.at(0, c)) << name_of(backend) << " " << count;
        }
      }
    }
  }
}

/// Rows more than 2^31 elements apart, in memory that is reserved but for the pages in use.
TEST(Product, OffsetsBeyond31BitsAreWhole) {
  const std::int64_t stride = (std::int64_t{1} << 30) + 16,
                     depth = 64;  // elements: row 3 is at 3 * 2^30
  const auto bytes = static_cast<std::size_t>(4 * stride * 4);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    GTEST_SKIP() << "cannot reserve 16 GiB of addresses here";
  }
  const MatrixView far{memory, 4, depth, stride, kF32};
  Random random(9);
  TypedMatrix near(4, depth, kF32);
  near.fill_normal(random);
  const std::vector<std::int32_t> index = {0, 1, 2, 3};
  gather_rows(near.view(), index, far);
  const std::vector<std::int32_t> last = {3};
  const std::vector<std::int64_t> offsets = {0, 1};
  for (const Backend backend : available_backends()) {
    TypedMatrix y(4, 4, kF32), wanted(4, 4, kF32);
    linear(far, far, y.view(), {nullptr, backend});
    linear(near.view(), near.view(), wanted.view(), {nullptr, backend});
    EXPECT_TRUE(y.same_bits(wanted)) << name_of(backend);
    const std::vector<ConstMatrixView> weights = {ConstMatrixView(far)};
    const std::vector<ConstMatrixView> near_weights = {std::as_const(near).view()};
    TypedMatrix h(1, 2, kF32), near_h(1, 2, kF32);
    GroupedUp up;
    up.x = far;
    up.row_of = last;
    up.expert_offsets = offsets;
    up.gate_up = weights;
    up.hidden = h.view();
    grouped_up(up, {nullptr, backend});
    up.x = near.view();
    up.gate_up = near_weights;
    up.hidden = near_h.view();
    grouped_up(up, {nullptr, backend});
    EXPECT_TRUE(h.same_bits(near_h)) << name_of(backend);
  }
  munmap(memory, bytes);
}

TEST(Product, RefusesWhatDoesNotFit) {
  const auto message_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  Random random(10);
  TypedMatrix x(4, 16, kF32), w(6, 15, kF32), fit(6, 16, kF32), y(4, 6, kF32), short_y(3, 6, kF32);
  EXPECT_EQ(message_of([&] { linear(x.view(), w.view(), y.view()); }),
            "linear: number of columns of w is 15, but number of columns of x is 16");
  EXPECT_EQ(message_of([&] { linear(x.view(), fit.view(), short_y.view()); }),
            "linear: number of rows of y is 3, but number of rows of x is 4");
  ConstMatrixView null = fit.view();
  null.data = nullptr;
  EXPECT_EQ(message_of([&] { linear(x.view(), null, y.view()); }),
            "linear: w [6, 16] is a null pointer");
  Experts experts(2, 16, 3, kF32, random);
  experts.offsets = {0, 3, 4};
  TypedMatrix hidden(4, 3, kF32);
  GroupedUp up;
  up.x = x.view();
  up.expert_offsets = experts.offsets;
  up.gate_up = experts.gate_up_views;
  up.hidden = hidden.view();
  EXPECT_EQ(message_of([&] { grouped_up(up); }), "no error");
  experts.offsets = {0, 3, 5};
  EXPECT_EQ(message_of([&] { grouped_up(up); }),
            "grouped_up: expert_offsets ends at 5, but there are 4 rows");
  experts.offsets = {0, 5, 4};
  EXPECT_EQ(message_of([&] { grouped_up(up); }),
            "grouped_up: expert_offsets[2] is 4, less than the 5 before it");
  experts.offsets = {0, 3, 4};
  const std::vector<std::int32_t> row_of = {0, 1, 4, 0};
  up.row_of = row_of;
  EXPECT_EQ(message_of([&] { grouped_up(up); }), "grouped_up: row_of[2] is 4, outside [-1, 4)");
  up.row_of = {};
  experts.gate_up_views[1].rows = 5;
  EXPECT_EQ(message_of([&] { grouped_up(up); }),
            "grouped_up: gate_up[1] has shape [5, 16]; expected [6, 16]");
  experts.offsets = {0, 4, 4};
  EXPECT_EQ(message_of([&] { grouped_up(up); }), "no error") << "an idle expert is not looked at";
}

}  // namespace
}  // namespace coterie::kernels
