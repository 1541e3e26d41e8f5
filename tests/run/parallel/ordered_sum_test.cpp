// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "coterie/base/random.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::parallel {
namespace {

template <typename T>
std::vector<T> draw(std::size_t count, int rank) {
  Random random(17, static_cast<std::uint64_t>(rank));
  std::vector<T> values(count);
  for (T& value : values) {
    value = static_cast<T>(random.normal() * std::pow(10.0, 6.0 * random.uniform() - 3.0));
  }
  return values;
}

/// Added in rank order, 0 first: what every rank must get, to the last bit.
template <typename T>
std::vector<T> plain_sum(std::size_t count, int num_ranks) {
  std::vector<T> sum = draw<T>(count, 0);
  for (int r = 1; r < num_ranks; ++r) {
    const std::vector<T> next = draw<T>(count, r);
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += next[i];
    }
  }
  return sum;
}

template <typename T>
void expect_sums(SumType type) {
  for (const int num_ranks : {1, 2, 3, 5}) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{257}}) {
      const std::vector<T> expected = plain_sum<T>(count, num_ranks);
      comm::run_ranks(num_ranks, [&](comm::Communicator& group) {
        std::vector<T> values = draw<T>(count, group.rank());
        all_reduce(group, {values.data(), std::ssize(values), type});
        EXPECT_EQ(values, expected) << num_ranks << " ranks, " << count;
      });
    }
  }
}

TEST(OrderedSum, IsThatOfAPlainLoopOverRanksToTheLastBit) {
  expect_sums<float>(SumType::kFloat32);
  expect_sums<double>(SumType::kFloat64);
  expect_sums<std::int64_t>(SumType::kInt64);
}

TEST(OrderedSum, BitsDoNotDependOnTheCutsOfBuckets) {
  constexpr std::size_t kCount = 1000;
  const std::vector<float> expected = plain_sum<float>(kCount, 4);
  comm::run_ranks(4, [&](comm::Communicator& group) {
    Random shared(5);
    for (int round = 0; round < 20; ++round) {
      std::vector<float> values = draw<float>(kCount, group.rank());
      for (std::size_t at = 0; at < kCount;) {
        const std::size_t n = std::min(kCount - at, static_cast<std::size_t>(shared.below(300)));
        all_reduce(group, {values.data() + at, static_cast<std::int64_t>(n), SumType::kFloat32});
        at += n;
      }
      ASSERT_EQ(values, expected) << round;
    }
  });
}

TEST(OrderedSum, HalvesOfAnAllReduceMeet) {
  comm::run_ranks(3, [](comm::Communicator& group) {
    const std::vector<double> expected = plain_sum<double>(11, 3);
    std::vector<double> values = draw<double>(11, group.rank());
    const std::vector<double> before = values;
    const Numbers numbers{values.data(), 11, SumType::kFloat64};
    const Share share = reduce_scatter(group, numbers);
    EXPECT_EQ(share, share_of(11, 3, group.rank()));
    for (std::size_t i = 0; i < 11; ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const bool mine = at >= share.begin && at < share.end;
      EXPECT_EQ(values[i], mine ? expected[i] : before[i]);
    }
    all_gather_shares(group, numbers);
    EXPECT_EQ(values, expected);
  });
}

std::uint16_t bf16_of(float value) {  // exact for what the test uses
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
}

TEST(OrderedSum, Bfloat16IsAddedInFp32AndRoundedOnceToEven) {
  // 256 + 1 + 1: in bf16 steps (ulp 2) each 1 would be lost; in fp32 it is 258.
  const std::vector<std::vector<float>> parts = {{256, 1, 3}, {1, 2, -3}, {1, 4, 0.5}};
  comm::run_ranks(3, [&](comm::Communicator& group) {
    std::vector<std::uint16_t> values;
    for (const float value : parts[static_cast<std::size_t>(group.rank())]) {
      values.push_back(bf16_of(value));
    }
    all_reduce(group, {values.data(), 3, SumType::kBfloat16});
    EXPECT_EQ(values, (std::vector<std::uint16_t>{bf16_of(258), bf16_of(7), bf16_of(0.5)}));
  });
  comm::run_ranks(2, [&](comm::Communicator& group) {
    // 257 lies between 256 and 258: to even, 256. 259 lies between 258 and 260: to even, 260.
    std::vector<std::uint16_t> values = group.rank() == 0 ? std::vector{bf16_of(256), bf16_of(258)}
                                                          : std::vector{bf16_of(1), bf16_of(1)};
    all_reduce(group, {values.data(), 2, SumType::kBfloat16});
    EXPECT_EQ(values, (std::vector<std::uint16_t>{bf16_of(256), bf16_of(260)}));
  });
}

TEST(OrderedSum, BlocksOfUnequalSizesGoAndComeBack) {
  const std::vector<std::int64_t> counts = {3, 0, 5};
  comm::run_ranks(3, [&](comm::Communicator& group) {
    const auto mine = static_cast<std::size_t>(counts[static_cast<std::size_t>(group.rank())]);
    std::vector<float> block(mine, static_cast<float>(group.rank() + 1));
    std::vector<float> all(8);
    all_gather_blocks(group, {block.data(), std::ssize(block), SumType::kFloat32}, counts,
                      {all.data(), 8, SumType::kFloat32}, comm::Purpose::kDispatch);
    EXPECT_EQ(all, (std::vector<float>{1, 1, 1, 3, 3, 3, 3, 3}));
    reduce_scatter_blocks(group, {all.data(), 8, SumType::kFloat32}, counts,
                          {block.data(), std::ssize(block), SumType::kFloat32},
                          comm::Purpose::kCombine);
    EXPECT_EQ(block, std::vector<float>(mine, 3.0F * static_cast<float>(group.rank() + 1)));
  });
}

}  // namespace
}  // namespace coterie::parallel
