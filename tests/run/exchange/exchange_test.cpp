// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/exchange.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "tests/run/exchange/random_case.hpp"

namespace coterie::exchange {
namespace {

using kernels::DType;

std::vector<ExchangeOptions> all_options() {
  std::vector<ExchangeOptions> options;
  for (const ExchangeForm form : {ExchangeForm::kPerDevice, ExchangeForm::kPerExpert}) {
    for (const DType partial : {DType::kFloat32, DType::kBfloat16}) {
      for (const std::int64_t max_rows : {std::int64_t{3}, std::int64_t{1000}}) {
        options.push_back({form, partial, max_rows, /*poison_buffers=*/true});
      }
    }
  }
  return options;
}

/// The rows of all ranks, each computed by its own rank, joined in rank order.
std::vector<std::byte> run_ranks_joined(const RandomCase& made, const PlacementIndex& index,
                                        const ExchangeOptions& options, DType type) {
  std::vector<std::vector<std::byte>> of_rank(made.ranks.size());
  comm::run_ranks(static_cast<int>(made.ranks.size()), [&](comm::Communicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    of_rank[rank] = run_exchange(made.ranks[rank], index, options, type, &communicator);
  });
  std::vector<std::byte> all;
  for (const auto& rows : of_rank) {
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

TEST(Exchange, RanksVirtualDevicesAndReferenceAgreeToTheLastBit) {
  for (std::uint64_t seed = 0; seed < 96; ++seed) {
    const RandomCase made = random_case(seed);
    const PlacementIndex index(made.placement);
    const RankTokens all = joined(made.ranks);
    const DType type = seed % 3 == 0 ? DType::kBfloat16 : DType::kFloat32;
    for (const ExchangeOptions& options : all_options()) {
      SCOPED_TRACE(join_message(made.description, ", ", name_of(options.form)));
      const auto expected = run_reference(all, index, options, type);
      ASSERT_EQ(run_exchange(all, index, options, type, nullptr), expected);
      ASSERT_EQ(run_ranks_joined(made, index, options, type), expected);
    }
  }
}

TEST(Exchange, FormsAgreeToTheLastBitWithFloat32Sums) {
  for (std::uint64_t seed = 100; seed < 140; ++seed) {
    const RandomCase made = random_case(seed);
    SCOPED_TRACE(made.description);
    const PlacementIndex index(made.placement);
    const ExchangeOptions classical{ExchangeForm::kPerExpert, DType::kFloat32, 50, true};
    ASSERT_EQ(run_ranks_joined(made, index, {}, DType::kFloat32),
              run_ranks_joined(made, index, classical, DType::kFloat32));
  }
}

TEST(Exchange, Bfloat16SumsStayNear) {
  bool differs = false;
  for (std::uint64_t seed = 200; seed < 220; ++seed) {
    const RandomCase made = random_case(seed);
    SCOPED_TRACE(made.description);
    const PlacementIndex index(made.placement);
    const RankTokens all = joined(made.ranks);
    ExchangeOptions rounded;
    rounded.partial_type = DType::kBfloat16;
    const auto exact = run_exchange(all, index, {}, DType::kFloat32, nullptr);
    const auto near = run_exchange(all, index, rounded, DType::kFloat32, nullptr);
    differs = differs || exact != near;
    for (std::size_t i = 0; i < exact.size(); i += sizeof(float)) {
      float a = 0;
      float b = 0;
      std::memcpy(&a, exact.data() + i, sizeof(float));
      std::memcpy(&b, near.data() + i, sizeof(float));
      ASSERT_TRUE(std::isfinite(a));
      // At most 8 partial sums below 256 in size, each rounded by at most 2^-9 of itself.
      ASSERT_NEAR(a, b, 4.0);
    }
  }
  EXPECT_TRUE(differs);
}

TEST(Exchange, IdleRanksJoinEveryCollective) {
  const PlacementIndex index(placement::contiguous_placement(8, 4));
  comm::run_ranks(4, [&](comm::Communicator& communicator) {
    RankTokens tokens;
    tokens.top_k = 2;
    tokens.hidden = 4;
    if (communicator.rank() == 0) {
      // Seven tokens, all for device 3; the other ranks have none (their counts: 7, 0, 0, 0).
      tokens.num_tokens = 7;
      for (int t = 0; t < 7; ++t) {
        tokens.ids.insert(tokens.ids.end(), {6, 7});
        tokens.weights.insert(tokens.weights.end(), {0.5F, 0.25F});
      }
      tokens.x.assign(28, 1.0F);
    }
    for (int step = 0; step < 5; ++step) {
      run_exchange(tokens, index, {}, DType::kFloat32, &communicator);
    }
    EXPECT_EQ(communicator.traffic().num_collectives, 20U);
  });
}

TEST(Exchange, OffsetsBeyond32BitsAreRight) {
  // Rows 2^20 elements apart: the last one begins behind element 2^31. Only touched pages exist.
  constexpr std::int64_t kRows = 2100;
  constexpr std::int64_t kStride = std::int64_t{1} << 20;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kRows * kStride) * sizeof(float);
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    GTEST_SKIP() << "no 8 GiB of address space";
  }
  const kernels::MatrixView x{memory, kRows, 2, kStride, DType::kFloat32};
  RankTokens tokens{.num_tokens = kRows, .top_k = 1, .hidden = 2};
  for (std::int64_t t = 0; t < kRows; ++t) {
    x.row<float>(t)[0] = static_cast<float>(t);
    tokens.ids.push_back(static_cast<std::int32_t>(t % 2));
    tokens.weights.push_back(1.0F);
  }
  const PlacementIndex index(placement::contiguous_placement(2, 2));
  Exchange exchange(index, {}, nullptr, "test");
  exchange.dispatch(x, tokens.routing());
  for (const std::int32_t device : exchange.local_devices()) {
    const DeviceWork work = exchange.work(device, 0);
    std::vector<float> out(work.row_of.size() * 2);
    for (std::size_t i = 0; i < work.row_of.size(); ++i) {
      out[2 * i] = work.rows.row<float>(work.row_of[i])[0];
    }
    exchange.take_back({out.data(), std::ssize(work.row_of), 2, 2, DType::kFloat32});
  }
  exchange.combine(x);
  for (std::int64_t t = 0; t < kRows; ++t) {
    ASSERT_EQ(x.row<float>(t)[0], static_cast<float>(t));
  }
  ::munmap(memory, kBytes);
}

TEST(Exchange, BuffersAreKeptFromBatchToBatch) {
  const RandomCase made = random_case(7);
  const PlacementIndex index(made.placement);
  const RankTokens all = joined(made.ranks);
  ASSERT_GT(all.num_tokens, 10);
  const RankTokens none{.top_k = all.top_k, .hidden = all.hidden};
  Exchange exchange(index, {}, nullptr, "test");
  std::vector<std::size_t> bytes;
  for (const RankTokens* tokens : {&all, &none, &all}) {
    exchange.dispatch(tokens->view(DType::kFloat32), tokens->routing());
    bytes.push_back(exchange.buffer_bytes());
  }
  EXPECT_GT(bytes[0], 0U);
  EXPECT_EQ(bytes[1], bytes[0]);
  EXPECT_EQ(bytes[2], bytes[0]);
}

TEST(Exchange, ShapesThatDoNotFitAreRefused) {
  const PlacementIndex index(placement::contiguous_placement(4, 2));
  RankTokens tokens{.num_tokens = 1, .top_k = 1, .ids = {2}, .weights = {1.0F}, .hidden = 3};
  tokens.x = {1, 2, 3};
  Exchange exchange(index, {}, nullptr, "layer 5");
  auto two_rows = tokens.view(DType::kFloat32);
  two_rows.rows = 2;
  EXPECT_THROW(exchange.dispatch(two_rows, tokens.routing()), Error);
  auto wrong_type = tokens.view(DType::kFloat32);
  wrong_type.type = DType::kInt32;
  EXPECT_THROW(exchange.dispatch(wrong_type, tokens.routing()), Error);

  exchange.dispatch(tokens.view(DType::kFloat32), tokens.routing());
  std::vector<float> out(6);
  ASSERT_EQ(exchange.num_parts(1), 1);
  exchange.work(1, 0);
  EXPECT_THROW(exchange.take_back({out.data(), 2, 3, 3, DType::kFloat32}), Error);
  EXPECT_THROW(exchange.take_back({out.data(), 1, 2, 2, DType::kFloat32}), Error);
  EXPECT_NO_THROW(exchange.take_back({out.data(), 1, 3, 3, DType::kFloat32}));
  EXPECT_THROW(exchange.combine({out.data(), 2, 3, 3, DType::kFloat32}), Error);
  EXPECT_THROW(exchange.combine({out.data(), 1, 2, 2, DType::kFloat32}), Error);
  EXPECT_NO_THROW(exchange.combine({out.data(), 1, 3, 3, DType::kFloat32}));
}

TEST(Exchange, OptionsAndGroupsThatDoNotFitAreRefused) {
  const PlacementIndex index(placement::contiguous_placement(4, 2));
  ExchangeOptions options;
  options.partial_type = DType::kFloat16;
  EXPECT_THROW(Exchange(index, options, nullptr, "test"), Error);
  options = {};
  options.max_expanded_rows = 0;
  EXPECT_THROW(Exchange(index, options, nullptr, "test"), Error);
  comm::SingleCommunicator single;
  try {
    Exchange(index, {}, &single, "layer 5");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "layer 5: the placement has 2 devices, but there are 1 ranks");
  }
}

TEST(ExchangeForm, NamesRoundTrip) {
  for (const ExchangeForm form : {ExchangeForm::kPerDevice, ExchangeForm::kPerExpert}) {
    EXPECT_EQ(exchange_form_of(name_of(form)), form);
  }
  EXPECT_THROW(exchange_form_of("per_token"), Error);
}

}  // namespace
}  // namespace coterie::exchange
