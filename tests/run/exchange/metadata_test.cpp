// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/metadata.hpp"

#include <gtest/gtest.h>

#include "tests/run/exchange/random_case.hpp"

namespace coterie::exchange {
namespace {

constexpr ExchangeForm kForm = ExchangeForm::kPerDevice;

/// Two rows for device 0: the first with entries of slots 0 and 1, the second of slot 1.
struct Block {
  SendLists lists;
  BlockSize size{2, 3};
  std::vector<std::byte> bytes;

  Block() {
    const PlacementIndex index(placement::contiguous_placement(4, 2));
    const RankTokens tokens{
        .num_tokens = 2, .top_k = 2, .ids = {1, 0, 1, 2}, .weights = {0.5F, 0.25F, 0.125F, 1.0F}};
    make_send_lists(tokens.routing(), index, kForm, lists);
    bytes.resize(static_cast<std::size_t>(metadata_bytes(size, kForm)));
    encode_metadata(lists, 0, kForm, bytes);
  }
};

std::string refusal(const std::vector<std::byte>& bytes, const BlockSize& size,
                    std::int32_t num_slots = 2) {
  RowEntries entries;
  try {
    decode_metadata(bytes, size, kForm, num_slots, "layer 3: rank 1", entries);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeer);
    return error.what();
  }
}

TEST(Metadata, RoundTripsWithoutPadding) {
  const Block block;
  EXPECT_EQ(block.bytes.size(), 3 * 4 + 3 * 2 + 2U);
  RowEntries entries;
  decode_metadata(block.bytes, block.size, kForm, 2, "test", entries);
  EXPECT_EQ(entries.offsets, (std::vector<std::int64_t>{0, 2, 3}));
  EXPECT_EQ(entries.slots, (std::vector<std::uint16_t>{0, 1, 1}));
  EXPECT_EQ(entries.weights, (std::vector<float>{0.25F, 0.5F, 0.125F}));
  // A second source's rows come behind.
  decode_metadata(block.bytes, block.size, kForm, 2, "test", entries);
  EXPECT_EQ(entries.offsets, (std::vector<std::int64_t>{0, 2, 3, 5, 6}));
}

TEST(Metadata, WhatDoesNotFitNamesTheSource) {
  const Block block;
  EXPECT_EQ(refusal(block.bytes, block.size), "");
  auto cut = block.bytes;
  cut.pop_back();
  EXPECT_EQ(refusal(cut, block.size),
            "layer 3: rank 1: 2 rows with 3 entries do not fit 19 bytes of metadata in form "
            "per_device");
  EXPECT_NE(refusal(block.bytes, {3, 3}), "");
  EXPECT_NE(refusal(block.bytes, {-1, 3}), "");
  EXPECT_NE(refusal({}, {2, 1}), "");
  auto miscounted = block.bytes;
  miscounted.back() = std::byte{2};
  EXPECT_EQ(refusal(miscounted, block.size),
            "layer 3: rank 1: its 2 rows have 4 entries, but it announced 3");
  EXPECT_EQ(refusal(block.bytes, block.size, 1),
            "layer 3: rank 1: it asks for slot 1 of 1: its placement is another one");
}

TEST(Metadata, EncodingIntoTheWrongSizeIsRefused) {
  const Block block;
  std::vector<std::byte> out(block.bytes.size() + 1);
  EXPECT_THROW(encode_metadata(block.lists, 0, kForm, out), Error);
  out.resize(block.bytes.size() - 1);
  EXPECT_THROW(encode_metadata(block.lists, 0, kForm, out), Error);
}

TEST(Metadata, ARankWithAnotherPlacementIsFound) {
  // Rank 1 believes that device 0 holds three experts.
  const PlacementIndex right(placement::contiguous_placement(4, 2));
  const PlacementIndex wrong({4, {{0, 1, 2}, {3}}, {}});
  const RankTokens tokens{
      .num_tokens = 1, .top_k = 1, .ids = {2}, .weights = {1.0F}, .hidden = 1, .x = {1.0F}};
  try {
    comm::run_ranks(2, [&](comm::Communicator& communicator) {
      run_exchange(tokens, communicator.rank() == 0 ? right : wrong, {}, kernels::DType::kFloat32,
                   &communicator);
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1: it asks for slot 2 of 2"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace coterie::exchange
