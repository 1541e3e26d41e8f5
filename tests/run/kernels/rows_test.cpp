// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/kernels/rows.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/run/kernels/bfloat16.hpp"
#include "tests/run/kernels/typed_matrix.hpp"

namespace coterie::kernels {
namespace {

constexpr Backend kTwins[] = {Backend::kReference, Backend::kGeneric};

TEST(Bfloat16, RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0F), 0x3f80);
  EXPECT_EQ(to_bfloat16(1.00390625F), 0x3f80);                        // half way: to even
  EXPECT_EQ(to_bfloat16(1.01171875F), 0x3f82);                        // half way: to even
  EXPECT_EQ(to_bfloat16(std::nextafter(1.00390625F, 2.0F)), 0x3f81);  // just above half way
  EXPECT_EQ(to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(std::bit_cast<float>(0x7f800001U)))));
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_bfloat16(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value)) {
      ASSERT_EQ(to_bfloat16(value), bits);
    }
  }
}

TEST(GatherRows, CopiesConvertsAndZeroes) {
  Random random(1);
  for (const DType from_type : {DType::kFloat32, DType::kBfloat16}) {
    for (const DType to_type : {DType::kFloat32, DType::kBfloat16}) {
      for (const std::int64_t columns : {0, 1, 7, 64, 1025}) {
        TypedMatrix from(9, columns, from_type, 3);
        from.fill_normal(random);
        const std::vector<std::int32_t> index = {3, -1, 8, 3, 0};
        for (const Backend backend : kTwins) {
          TypedMatrix to(5, columns, to_type, 2);
          to.poison();
          gather_rows(from.view(), index, to.view(), {nullptr, backend});
          for (std::int64_t i = 0; i < 5; ++i) {
            for (std::int64_t c = 0; c < columns; ++c) {
              const std::int32_t row = index[static_cast<std::size_t>(i)];
              const float value = row < 0 ? 0.0F : from.at(row, c);
              ASSERT_EQ(to.at(i, c),
                        to_type == DType::kFloat32 ? value : from_bfloat16(to_bfloat16(value)));
            }
          }
          EXPECT_TRUE(to.padding_is_poison());
        }
      }
    }
  }
}

TEST(ScatterRows, WritesNamedRowsOnly) {
  Random random(2);
  TypedMatrix from(4, 33, DType::kFloat32);
  from.fill_normal(random);
  const std::vector<std::int32_t> index = {5, -1, 0, 2};
  for (const Backend backend : kTwins) {
    TypedMatrix to(6, 33, DType::kFloat32);
    to.poison();
    scatter_rows(from.view(), index, to.view(), {nullptr, backend});
    for (std::int64_t c = 0; c < 33; ++c) {
      EXPECT_EQ(to.at(5, c), from.at(0, c));
      EXPECT_EQ(to.at(0, c), from.at(2, c));
      EXPECT_EQ(to.at(2, c), from.at(3, c));
      EXPECT_TRUE(std::isnan(to.at(1, c)) && std::isnan(to.at(3, c)) && std::isnan(to.at(4, c)));
    }
  }
}

TEST(MergeRows, TwinsGiveEqualBitsOnRandomLists) {
  Threads threads(3);
  Random random(5);
  for (int round = 0; round < 40; ++round) {
    const auto num_rows = static_cast<std::int64_t>(1 + random.below(50));
    const auto num_lists = static_cast<std::int64_t>(random.below(70));
    const auto columns = static_cast<std::int64_t>(random.below(1200));
    const DType from_type = round % 2 == 0 ? DType::kFloat32 : DType::kBfloat16;
    const DType to_type = round % 4 < 2 ? DType::kFloat32 : DType::kBfloat16;
    const bool add = to_type == DType::kFloat32 && round % 3 == 0;
    TypedMatrix from(num_rows, columns, from_type, round % 5);
    from.fill_normal(random);
    std::vector<std::int32_t> rows;
    std::vector<float> weights;
    std::vector<std::int64_t> offsets = {0};
    for (std::int64_t t = 0; t < num_lists; ++t) {
      const std::uint64_t length = round % 3 == 1 ? 3 : random.below(6);
      for (std::uint64_t j = 0; j < length; ++j) {
        rows.push_back(
            static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(num_rows) + 1)) - 1);
        weights.push_back(static_cast<float>(random.normal()));
      }
      offsets.push_back(static_cast<std::int64_t>(rows.size()));
    }
    RowLists lists{rows, weights, offsets};
    if (round % 3 == 1) {
      lists.offsets = {};
    }
    TypedMatrix slow(num_lists, columns, to_type, 1);
    slow.poison();
    if (add) {
      slow.fill_normal(random);
    }
    TypedMatrix fast = slow;
    merge_rows(from.view(), lists, slow.view(), add, {nullptr, Backend::kReference});
    merge_rows(from.view(), lists, fast.view(), add, {&threads, Backend::kGeneric});
    ASSERT_TRUE(slow.same_bits(fast)) << "round " << round;
  }
}

TEST(MergeRows, AddsInListOrderAndSkipsAbsentRows) {
  TypedMatrix from(3, 1, DType::kFloat32);
  from.set(0, 0, 1e8F);
  from.set(1, 0, -1e8F);
  from.set(2, 0, 1.0F);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Backend backend : kTwins) {
    TypedMatrix to(2, 1, DType::kFloat32);
    to.poison();
    const std::vector<std::int32_t> rows = {0, 1, 2, 0, 2, 1, -1};
    const std::vector<float> weights = {1, 1, 1, 1, 1, 1, nan};
    const std::vector<std::int64_t> offsets = {0, 3, 7};
    merge_rows(from.view(), {rows, weights, offsets}, to.view(), false, {nullptr, backend});
    EXPECT_EQ(to.at(0, 0), 1.0F);
    EXPECT_EQ(to.at(1, 0), 0.0F);
  }
}

TEST(Rows, RefuseWhatDoesNotFit) {
  const auto message_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  TypedMatrix from(4, 8, DType::kFloat32), to(2, 8, DType::kFloat32);
  const std::vector<std::int32_t> outside = {1, 4}, below = {-2, 0}, fine = {1, 2},
                                  three = {0, 1, 2};
  EXPECT_EQ(message_of([&] { gather_rows(from.view(), outside, to.view()); }),
            "gather_rows: index[1] is 4, outside [-1, 4)");
  EXPECT_EQ(message_of([&] { gather_rows(from.view(), below, to.view()); }),
            "gather_rows: index[0] is -2, outside [-1, 4)");
  EXPECT_EQ(message_of([&] { gather_rows(from.view(), three, to.view()); }),
            "gather_rows: number of rows of to is 2, but length of index is 3");
  EXPECT_EQ(message_of([&] {
              merge_rows(from.view(), {three, {}, {}}, to.view());
            }),
            "merge_rows: length of rows is 3, no multiple of the 2 rows of to");
  MatrixView null = to.view();
  null.data = nullptr;
  EXPECT_EQ(message_of([&] { gather_rows(from.view(), fine, null); }),
            "gather_rows: to [2, 8] is a null pointer");
  ConstMatrixView overlapping = from.view();
  overlapping.row_stride = 7;
  EXPECT_EQ(message_of([&] { gather_rows(overlapping, fine, to.view()); }),
            "gather_rows: from has row stride 7, less than its 8 columns");
  ConstMatrixView whole = from.view();
  whole.type = DType::kInt32;
  EXPECT_EQ(message_of([&] { gather_rows(whole, fine, to.view()); }),
            "gather_rows: from is int32; expected float32, bfloat16 or float64");
}

}  // namespace
}  // namespace coterie::kernels
