// SPDX-License-Identifier: Apache-2.0
// The AVX-512 kernels' own sources over emulated intrinsics: their logic on machines without
// AVX-512. What this cannot show, the real instructions, product_test.cpp shows where they exist.
#include "tests/run/kernels/emulated_avx512.hpp"

#define product_kernels_avx512 emulated_product_kernels_avx512
#define product_kernels_avx512_bf16 emulated_product_kernels_avx512_bf16
#include "coterie/run/kernels/product_avx512.cpp"       // NOLINT(bugprone-suspicious-include)
#include "coterie/run/kernels/product_avx512_bf16.cpp"  // NOLINT(bugprone-suspicious-include)
#undef product_kernels_avx512
#undef product_kernels_avx512_bf16

#include <gtest/gtest.h>

#include "coterie/run/kernels/activation_math.hpp"
#include "coterie/run/kernels/product.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

namespace coterie::kernels {
namespace {

/// y = x w^T (or the gated product) by one back end's block function, rows [first, first + count).
void run_block(const ProductKernels& kernels, const TypedMatrix& x, const TypedMatrix& w,
               bool gated, TypedMatrix& y, std::int64_t first, std::int64_t count) {
  const ConstMatrixView x_view = x.view(), w_view = w.view();
  std::vector<const void*> rows;
  for (std::int64_t r = first; r < first + count; ++r) {
    rows.push_back(x_view.row<char>(0) + r * x_view.row_stride * size_of(x_view.type));
  }
  std::vector<char> scratch(static_cast<std::size_t>(kernels.scratch_bytes(x_view.columns)) + 64);
  ProductBlock block;
  block.x_rows = rows.data();
  block.num_rows = count;
  block.depth = x_view.columns;
  block.x_type = x_view.type;
  block.w_stride = w_view.row_stride * size_of(w_view.type);
  block.w = w_view.row<char>(0);
  block.w_type = w_view.type;
  block.num_columns = y.view().columns;
  block.w_up = gated ? block.w + block.num_columns * block.w_stride : nullptr;
  block.y_stride = y.view().row_stride * size_of(y.view().type);
  block.y = y.view().row<char>(0) + first * block.y_stride;
  block.y_type = y.view().type;
  block.y_size = size_of(block.y_type);
  block.epilogue = gated ? Epilogue::kSwiGlu : Epilogue::kNone;
  block.scratch = scratch.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch.data()) % 64);
  kernels.run(block);
}

class EmulatedAvx512 : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!is_available(Backend::kAvx2)) {
      GTEST_SKIP() << "the emulation is compiled for AVX2, which this machine lacks";
    }
  }
  static ProductKernels kernels() {
    return GetParam() ? emulated_product_kernels_avx512_bf16() : emulated_product_kernels_avx512();
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedAvx512, testing::Bool(), [](const auto& p) {
  return std::string(p.param ? "avx512_bf16" : "avx512");
});

TEST_P(EmulatedAvx512, MatchesTheReference) {
  Random random(21);
  Threads threads(1);
  const std::int64_t row_counts[] = {1, 2, 3, 7, 19, 20, 73};
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{0, 5}, {31, 3}, {40, 197}, {1061, 9}};
  for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
    for (const auto& [depth, outputs] : sizes) {
      for (const std::int64_t rows : row_counts) {
        for (const bool gated : {false, true}) {
          TypedMatrix x(rows, depth, type, 3), w(outputs * (gated ? 2 : 1), depth, type, 1);
          x.fill_normal(random);
          w.fill_normal(random, 1.0 / std::sqrt(static_cast<double>(depth) + 1.0));
          TypedMatrix y(rows, outputs, DType::kFloat32, 1), wanted(rows, outputs, DType::kFloat32);
          y.poison();
          run_block(kernels(), x, w, gated, y, 0, rows);
          const std::int64_t offsets[] = {0, rows};
          const ConstMatrixView w_view = std::as_const(w).view();
          GroupedProduct task{x.view(), {}, offsets, {&w_view, 1}, wanted.view()};
          task.epilogue = gated ? Epilogue::kSwiGlu : Epilogue::kNone;
          grouped_product_reference(task, threads);
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < outputs; ++c) {
              ASSERT_NEAR(y.at(r, c), wanted.at(r, c), 1e-5 * (1 + std::abs(wanted.at(r, c))))
                  << rows << " rows, depth " << depth << ", output " << c;
            }
          }
          EXPECT_TRUE(y.padding_is_poison());
        }
      }
    }
  }
}

TEST_P(EmulatedAvx512, BitsOfARowDoNotDependOnTheOthers) {
  Random random(22);
  for (const DType type : {DType::kFloat32, DType::kBfloat16}) {
    TypedMatrix x(75, 1061, type), w(13, 1061, type), alone(75, 13, DType::kFloat32);
    x.fill_normal(random);
    w.fill_normal(random);
    for (std::int64_t r = 0; r < 75; ++r) {
      run_block(kernels(), x, w, false, alone, r, 1);
    }
    for (const std::int64_t count : {2, 3, 4, 5, 6, 7, 12, 17, 19, 20, 24, 72, 73, 75}) {
      TypedMatrix y(75, 13, DType::kFloat32);
      run_block(kernels(), x, w, false, y, 75 - count, count);
      for (std::int64_t r = 75 - count; r < 75; ++r) {
        for (std::int64_t c = 0; c < 13; ++c) {
          ASSERT_EQ(y.at(r, c), alone.at(r, c)) << count << " rows";
        }
      }
    }
  }
}

/// The matrix's rows as one side of outer products.
OuterOperand operand_of(const TypedMatrix& matrix, bool by_depth) {
  const ConstMatrixView view = matrix.view();
  OuterOperand operand;
  operand.base = view.row<char>(0);
  operand.stride = view.row_stride * size_of(view.type);
  operand.type = view.type;
  operand.by_depth = by_depth;
  return operand;
}

/// Each element against its own chain, bit for bit; in every layout of the operands.
TEST_P(EmulatedAvx512, OuterProductsAreChains) {
  Random random(23);
  const std::int64_t shapes[][3] = {
      {1, 5, 0}, {1, 48, 7}, {6, 150, 40}, {7, 49, 300}, {144, 192, 130}};
  for (const DType type : {DType::kFloat32, DType::kBfloat16, DType::kFloat64}) {
    for (const auto& [rows, columns, depth] : shapes) {
      for (const int layout : {0, 1, 2, 3}) {
        const bool a_by_depth = layout % 2 == 1, b_by_depth = layout != 2;
        const bool few = layout == 0 && rows <= kOuterFewRows;
        TypedMatrix a(a_by_depth ? depth : rows, a_by_depth ? rows : depth, type, 1);
        TypedMatrix b(b_by_depth ? depth : columns, b_by_depth ? columns : depth, type, 2);
        a.fill_normal(random);
        b.fill_normal(random);
        std::vector<char> memory(static_cast<std::size_t>(kOuterScratchBytes + kOuterSumsBytes) +
                                 64);
        OuterBlock block;
        block.a = operand_of(a, a_by_depth);
        block.b = operand_of(b, b_by_depth);
        block.num_rows = rows;
        block.num_columns = columns;
        block.depth = depth;
        block.few_rows = few;
        block.scratch = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
        block.sums = block.scratch + kOuterScratchBytes;
        block.sums_stride = kOuterColumns;
        const bool fp64 = type == DType::kFloat64;
        (fp64 ? kernels().outer_fp64 : kernels().outer_fp32)(block);
        for (std::int64_t m = 0; m < rows; ++m) {
          for (std::int64_t n = 0; n < columns; ++n) {
            float chain = 0.0F;
            double wide = 0.0;
            for (std::int64_t k = 0; k < depth; ++k) {
              const double x = a_by_depth ? a.at(k, m) : a.at(m, k);
              const double y = b_by_depth ? b.at(k, n) : b.at(n, k);
              chain = std::fma(static_cast<float>(x), static_cast<float>(y), chain);
              wide = std::fma(x, y, wide);
            }
            const std::int64_t at = m * kOuterColumns + n;
            if (fp64) {
              ASSERT_EQ(static_cast<const double*>(block.sums)[at], wide) << layout;
            } else {
              ASSERT_EQ(static_cast<const float*>(block.sums)[at], chain) << layout;
            }
          }
        }
      }
    }
  }
}

TEST_P(EmulatedAvx512, DownBackwardRowsMatchTheFormula) {
  Random random(24);
  for (const std::int64_t count : {1, 48, 101}) {
    TypedMatrix pre(1, 2 * count, DType::kFloat32), d(1, 144, DType::kFloat32),
        grad(1, 2 * count, DType::kFloat32), hidden(1, count, DType::kFloat32);
    pre.fill_normal(random, 3.0);
    d.fill_normal(random);
    std::vector<double> parts(3);
    for (const Activation activation :
         {Activation::kSwiGlu, Activation::kGelu, Activation::kGeluTanh}) {
      DownBackwardRow row;
      row.d = d.view().row<float>(0);
      row.count = count;
      row.weight = 0.5F;
      row.activation = activation == Activation::kSwiGlu ? Epilogue::kSwiGlu
                       : activation == Activation::kGelu ? Epilogue::kGelu
                                                         : Epilogue::kGeluTanh;
      row.pre = pre.view().row<char>(0);
      row.pre_second = row.pre + count * 4;
      row.grad = grad.view().row<char>(0);
      row.grad_second = row.grad + count * 4;
      row.hidden = hidden.view().row<char>(0);
      row.parts = parts.data();
      kernels().down_backward_row(row);
      double dot = 0.0, sum = 0.0;
      for (std::int64_t i = 0; i < count; ++i) {
        const ActivationPoint at = activation_at(activation, pre.at(0, i), pre.at(0, count + i));
        EXPECT_NEAR(hidden.at(0, i), 0.5 * at.hidden, 1e-5);
        EXPECT_NEAR(grad.at(0, i), 0.5 * d.at(0, i) * at.by_first, 1e-5);
        if (activation == Activation::kSwiGlu) {
          EXPECT_NEAR(grad.at(0, count + i), 0.5 * d.at(0, i) * at.by_second, 1e-5);
        }
        dot += d.at(0, i) * at.hidden;
      }
      for (std::int64_t part = 0; part * kPartColumns < count; ++part) {
        sum += parts[static_cast<std::size_t>(part)];
      }
      EXPECT_NEAR(sum, dot, 1e-4);
    }
  }
}

}  // namespace
}  // namespace coterie::kernels
