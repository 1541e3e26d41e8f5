// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/exchange/reindex.hpp"

#include <gtest/gtest.h>

#include "coterie/base/json.hpp"
#include "tests/folders.hpp"
#include "tests/run/exchange/random_case.hpp"

namespace coterie::exchange {
namespace {

using IntMatrix = Matrix<std::int32_t>;

IntMatrix matrix_of(const std::vector<std::vector<std::int32_t>>& rows) {
  IntMatrix matrix(rows.size(), rows.empty() ? 0 : rows.front().size());
  for (std::size_t r = 0; r < matrix.rows(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), matrix.row(r).begin());
  }
  return matrix;
}

/// Ids of one rank, all weights 1.
RankTokens tokens_of(const std::vector<std::vector<std::int32_t>>& ids, std::int32_t top_k) {
  RankTokens tokens;
  tokens.num_tokens = std::ssize(ids);
  tokens.top_k = top_k;
  for (const auto& row : ids) {
    tokens.ids.insert(tokens.ids.end(), row.begin(), row.end());
  }
  tokens.weights.assign(tokens.ids.size(), 1.0F);
  return tokens;
}

/// What a device receives from all ranks in rank order, through the metadata that travels.
RowEntries received_by(std::int32_t device, const std::vector<RankTokens>& ranks,
                       const PlacementIndex& index, ExchangeForm form) {
  RowEntries received;
  for (const RankTokens& tokens : ranks) {
    SendLists lists;
    make_send_lists(tokens.routing(), index, form, lists);
    const BlockSize size{static_cast<std::int32_t>(lists.num_rows_to(device)),
                         static_cast<std::int32_t>(lists.num_entries_to(device))};
    std::vector<std::byte> block(static_cast<std::size_t>(metadata_bytes(size, form)));
    encode_metadata(lists, device, form, block);
    decode_metadata(block, size, form, index.num_slots(device), "test", received);
  }
  return received;
}

/// The dense matrices out of the lists.
IntMatrix by_device_of_lists(const SendLists& lists, std::int64_t num_tokens) {
  IntMatrix matrix(static_cast<std::size_t>(lists.num_devices()),
                   static_cast<std::size_t>(num_tokens), -1);
  for (std::size_t device = 0; device < matrix.rows(); ++device) {
    for (std::int64_t row = lists.row_offsets[device]; row < lists.row_offsets[device + 1]; ++row) {
      const std::int32_t token = lists.token_of_row[static_cast<std::size_t>(row)];
      matrix(device, static_cast<std::size_t>(token)) = static_cast<std::int32_t>(row);
    }
  }
  return matrix;
}

IntMatrix by_expert_of_lists(const ReceiveLists& lists, std::int32_t num_slots) {
  IntMatrix matrix(static_cast<std::size_t>(num_slots), static_cast<std::size_t>(lists.num_rows),
                   -1);
  for (std::size_t slot = 0; slot < matrix.rows(); ++slot) {
    for (std::int64_t i = lists.expert_offsets[slot]; i < lists.expert_offsets[slot + 1]; ++i) {
      const std::int32_t row = lists.row_of_expanded[static_cast<std::size_t>(i)];
      matrix(slot, static_cast<std::size_t>(row - lists.first_row)) = static_cast<std::int32_t>(i);
    }
  }
  return matrix;
}

TEST(Reindex, ExampleOfThePaper) {
  // Occult, Figure 4: two devices, two experts each, two tokens each, top-2.
  const PlacementIndex index(placement::contiguous_placement(4, 2));
  const std::vector<RankTokens> ranks = {tokens_of({{0, 3}, {0, 1}}, 2),
                                         tokens_of({{2, 3}, {1, 3}}, 2)};
  EXPECT_EQ(reindex_by_device(ranks[0].routing(), index), matrix_of({{0, 1}, {2, -1}}));
  EXPECT_EQ(reindex_by_device(ranks[1].routing(), index), matrix_of({{-1, 0}, {1, 2}}));
  const ExchangeForm form = ExchangeForm::kPerDevice;
  EXPECT_EQ(reindex_by_expert(received_by(0, ranks, index, form), 2),
            matrix_of({{0, 1, -1}, {-1, 2, 3}}));
  EXPECT_EQ(reindex_by_expert(received_by(1, ranks, index, form), 2),
            matrix_of({{-1, 0, -1}, {1, 2, 3}}));
}

TEST(Reindex, ExampleAboveTheCode) {
  const PlacementIndex index(placement::contiguous_placement(4, 2));
  const std::vector<RankTokens> ranks = {
      tokens_of({{0, 1}, {0, 2}, {2, 3}, {1, 3}, {0, 1}, {2, 3}, {1, 2}, {0, 3}}, 2)};
  EXPECT_EQ(reindex_by_device(ranks[0].routing(), index),
            matrix_of({{0, 1, -1, 2, 3, -1, 4, 5}, {-1, 6, 7, 8, -1, 9, 10, 11}}));
  EXPECT_EQ(reindex_by_expert(received_by(0, ranks, index, ExchangeForm::kPerDevice), 2),
            matrix_of({{0, 1, -1, 2, -1, 3}, {4, -1, 5, 6, 7, -1}}));
}

TEST(Reindex, GoldenCaseOfFourDevicesAndEightExperts) {
  const Json golden =
      read_json_file(tests::source_dir().string() + "/tests/golden/reindex_4x8.json");
  using Rows = std::vector<std::vector<std::int32_t>>;
  const PlacementIndex index({8, golden.at("experts_of_device").get<Rows>(), {}});
  std::vector<RankTokens> ranks;
  for (const Json& ids : golden.at("ids_of_rank")) {
    ranks.push_back(tokens_of(ids.get<Rows>(), 3));
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const IntMatrix expected =
        matrix_of(golden.at("reindex_by_device_of_rank").at(rank).get<Rows>());
    SendLists lists;
    make_send_lists(ranks[rank].routing(), index, ExchangeForm::kPerDevice, lists);
    EXPECT_EQ(reindex_by_device(ranks[rank].routing(), index), expected) << "rank " << rank;
    EXPECT_EQ(by_device_of_lists(lists, ranks[rank].num_tokens), expected) << "rank " << rank;
  }
  for (std::int32_t device = 0; device < 4; ++device) {
    const IntMatrix expected = matrix_of(
        golden.at("reindex_by_expert_of_device").at(static_cast<std::size_t>(device)).get<Rows>());
    const RowEntries received = received_by(device, ranks, index, ExchangeForm::kPerDevice);
    EXPECT_EQ(reindex_by_expert(received, index.num_slots(device)), expected) << device;
  }
}

TEST(Reindex, ListsHoldWhatTheMatricesHold) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomCase made = random_case(seed);
    SCOPED_TRACE(made.description);
    const PlacementIndex index(made.placement);
    for (const RankTokens& tokens : made.ranks) {
      SendLists lists;
      make_send_lists(tokens.routing(), index, ExchangeForm::kPerDevice, lists);
      ASSERT_EQ(by_device_of_lists(lists, tokens.num_tokens),
                reindex_by_device(tokens.routing(), index));
      ASSERT_TRUE(std::is_sorted(lists.entries.offsets.begin(), lists.entries.offsets.end()));
    }
    for (std::int32_t device = 0; device < index.num_devices(); ++device) {
      const RowEntries received = received_by(device, made.ranks, index, ExchangeForm::kPerDevice);
      ReceiveLists lists;
      make_receive_lists(received, index.num_slots(device), 0, received.num_rows(), lists);
      ASSERT_EQ(by_expert_of_lists(lists, index.num_slots(device)),
                reindex_by_expert(received, index.num_slots(device)));
    }
  }
}

TEST(Reindex, ClassicalFormHasOneRowAPick) {
  const PlacementIndex index(placement::contiguous_placement(4, 2));
  const RankTokens tokens = tokens_of({{1, 0}, {3, 0}, {-1, 2}}, 2);
  SendLists lists;
  make_send_lists(tokens.routing(), index, ExchangeForm::kPerExpert, lists);
  EXPECT_EQ(lists.row_offsets, (std::vector<std::int64_t>{0, 3, 5}));
  EXPECT_EQ(lists.token_of_row, (std::vector<std::int32_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(lists.entries.slots, (std::vector<std::uint16_t>{0, 1, 0, 1, 0}));
  EXPECT_EQ(lists.rows_of_token, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(lists.token_offsets, (std::vector<std::int64_t>{0, 2, 4, 5}));
}

TEST(ReceiveLists, PartsCoverAllRowsAndKeepTheLimit) {
  RowEntries entries;
  entries.offsets = {0, 2, 2, 7, 8, 9};
  EXPECT_EQ(cut_rows(entries, 0, 5, 3), (std::vector<std::int64_t>{0, 2, 3, 5}));
  EXPECT_EQ(cut_rows(entries, 0, 5, 100), (std::vector<std::int64_t>{0, 5}));
  EXPECT_EQ(cut_rows(entries, 3, 5, 1), (std::vector<std::int64_t>{3, 4, 5}));
  EXPECT_EQ(cut_rows(entries, 2, 2, 1), (std::vector<std::int64_t>{2}));
}

TEST(ReceiveLists, SlotOutOfRangeIsRefused) {
  RowEntries entries;
  entries.offsets = {0, 1};
  entries.slots = {2};
  entries.weights = {1.0F};
  ReceiveLists lists;
  EXPECT_NO_THROW(make_receive_lists(entries, 3, 0, 1, lists));
  EXPECT_THROW(make_receive_lists(entries, 2, 0, 1, lists), Error);
}

}  // namespace
}  // namespace coterie::exchange
