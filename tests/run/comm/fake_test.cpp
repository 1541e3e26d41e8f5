// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "coterie/run/comm/comm.hpp"

namespace coterie::comm {
namespace {

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<std::int64_t>;

std::byte payload(int from, int to, std::int64_t i, int round) {
  return static_cast<std::byte>((from * 31 + to * 7 + i * 13 + round * 5) & 0xff);
}

/// Sends counts[from][to] bytes each way and checks every byte that arrives.
void exchange_and_check(Communicator& comm, const std::vector<Sizes>& counts, int round) {
  const int me = comm.rank();
  Bytes send;
  Sizes receive_bytes;
  std::int64_t num_receive = 0;
  for (int r = 0; r < comm.size(); ++r) {
    for (std::int64_t i = 0; i < counts[me][r]; ++i) {
      send.push_back(payload(me, r, i, round));
    }
    receive_bytes.push_back(counts[r][me]);
    num_receive += counts[r][me];
  }
  Bytes receive(static_cast<std::size_t>(num_receive));
  comm.all_to_all(send, counts[me], receive, receive_bytes, Purpose::kDispatch);
  std::size_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    for (std::int64_t i = 0; i < counts[r][me]; ++i) {
      ASSERT_EQ(receive[at++], payload(r, me, i, round)) << "from " << r << " byte " << i;
    }
  }
}

/// The message with which each rank of `function` ends ("" if it returns).
std::vector<std::string> messages_of(int num_ranks,
                                     const std::function<void(Communicator&)>& function,
                                     std::chrono::milliseconds timeout = kDefaultTimeout) {
  std::vector<std::string> messages(num_ranks);
  try {
    run_ranks(
        num_ranks,
        [&](Communicator& comm) {
          try {
            function(comm);
          } catch (const std::exception& error) {
            messages[comm.rank()] = error.what();
            throw;
          }
        },
        timeout);
  } catch (const std::exception&) {
    // Each rank's own message is what the tests look at.
  }
  return messages;
}

TEST(FakeGroup, MovesUnevenAndZeroBlocks) {
  const std::vector<Sizes> counts = {{3, 2, 1}, {2, 2, 2}, {1, 2, 3}};
  run_ranks(3, [&](Communicator& comm) { exchange_and_check(comm, counts, 0); });
  const std::vector<Sizes> zeros(3, Sizes(3, 0));
  run_ranks(3, [&](Communicator& comm) { exchange_and_check(comm, zeros, 0); });
}

TEST(FakeGroup, RandomSparseMatricesEndAndAreExact) {
  constexpr int kRounds = 200;
  constexpr int kRanks = 5;
  Random random(7);
  std::vector<std::vector<Sizes>> rounds(kRounds, std::vector<Sizes>(kRanks, Sizes(kRanks, 0)));
  for (auto& matrix : rounds) {
    for (Sizes& row : matrix) {
      for (std::int64_t& count : row) {
        count = random.below(2) == 0 ? 0 : static_cast<std::int64_t>(random.below(300));
      }
    }
  }
  run_ranks(kRanks, [&](Communicator& comm) {
    std::uint64_t expected = 0;
    for (int round = 0; round < kRounds; ++round) {
      exchange_and_check(comm, rounds[round], round);
      for (int r = 0; r < kRanks; ++r) {
        expected +=
            r == comm.rank() ? 0 : static_cast<std::uint64_t>(rounds[round][comm.rank()][r]);
      }
    }
    EXPECT_EQ(comm.traffic().sent_for(Purpose::kDispatch), expected);
    EXPECT_EQ(comm.traffic().sent_for(Purpose::kCombine), 0U);
    EXPECT_EQ(comm.traffic().num_collectives, static_cast<std::uint64_t>(kRounds));
  });
}

TEST(FakeGroup, GathersBroadcastsAndCountsOnlyBytesForOthers) {
  run_ranks(4, [](Communicator& comm) {
    const Bytes mine(2, static_cast<std::byte>(comm.rank()));
    Bytes all(8);
    comm.all_gather(mine, all, Purpose::kMetadata);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(all[i], static_cast<std::byte>(i / 2));
    }
    Bytes data(3, static_cast<std::byte>(comm.rank() + 10));
    comm.broadcast(data, 2, Purpose::kControl);
    EXPECT_EQ(data, Bytes(3, std::byte{12}));
    comm.all_gather({}, {}, Purpose::kMetadata);
    comm.broadcast({}, 0, Purpose::kControl);
    comm.barrier();
    EXPECT_EQ(comm.traffic().sent_for(Purpose::kMetadata), 6U);
    EXPECT_EQ(comm.traffic().sent_for(Purpose::kControl), comm.rank() == 2 ? 9U : 0U);
    EXPECT_EQ(comm.traffic().num_collectives, 5U);
    comm.reset_traffic();
    EXPECT_EQ(comm.traffic(), Traffic{});
  });
}

TEST(FakeGroup, MismatchedSizesAreNamedOnEveryRank) {
  const auto messages = messages_of(3, [](Communicator& comm) {
    Sizes send(3, 4);
    const Sizes receive(3, 4);
    if (comm.rank() == 1) {
      send = {4, 4, 8};
    }
    Bytes out(comm.rank() == 1 ? 16 : 12);
    Bytes in(12);
    comm.all_to_all(out, send, in, receive, Purpose::kDispatch);
  });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("rank 1 sends 8 bytes to rank 2, which expects 4"), std::string::npos)
        << message;
  }
}

TEST(FakeGroup, DifferentCallsAreNamed) {
  const auto messages = messages_of(2, [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.barrier();
    } else {
      comm.all_gather({}, {}, Purpose::kControl);
    }
  });
  EXPECT_NE(messages[0].find("rank 0 calls barrier, rank 1 calls all_gather"), std::string::npos)
      << messages[0];
  EXPECT_EQ(messages[0], messages[1]);
}

TEST(FakeGroup, WrongOwnSizesAreRefusedBeforeAnythingIsSent) {
  SingleCommunicator single;
  Bytes two(2);
  const Sizes three = {3};
  const Sizes negative = {-1};
  const Sizes both = {1, 1};
  EXPECT_THROW(single.all_to_all(two, three, two, three, Purpose::kControl), Error);
  EXPECT_THROW(single.all_to_all({}, negative, {}, negative, Purpose::kControl), Error);
  EXPECT_THROW(single.all_to_all(two, both, two, both, Purpose::kControl), Error);
  EXPECT_THROW(single.broadcast(two, 1, Purpose::kControl), Error);
  EXPECT_EQ(single.traffic(), Traffic{});
}

TEST(FakeGroup, LimitNamesTheMissingRank) {
  std::atomic<bool> waiting_is_over = false;
  const auto messages = messages_of(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 1) {
          while (!waiting_is_over) {
            std::this_thread::yield();
          }
          return;
        }
        try {
          comm.barrier();
        } catch (const Error& error) {
          waiting_is_over = true;
          EXPECT_EQ(error.code(), ErrorCode::kPeer);
          throw;
        }
      },
      std::chrono::milliseconds(50));
  EXPECT_NE(messages[0].find("barrier (collective 0): rank 1 did not arrive within 50 ms"),
            std::string::npos)
      << messages[0];
  EXPECT_EQ(messages[2], messages[0]);
}

TEST(FakeGroup, RankThatLeavesEarlyEndsTheWaitAtOnce) {
  const auto messages = messages_of(2, [](Communicator& comm) {
    if (comm.rank() == 0) {
      comm.barrier();
    }
  });
  EXPECT_NE(messages[0].find("rank 1 has left the group"), std::string::npos) << messages[0];
}

TEST(RunRanks, FirstFailureIsThrownAgainAndAbortsTheOthers) {
  std::vector<std::string> messages(4);
  try {
    run_ranks(4, [&](Communicator& comm) {
      comm.barrier();
      if (comm.rank() == 2) {
        fail(ErrorCode::kInfeasible, "no room on device 2");
      }
      try {
        comm.barrier();
      } catch (const Error& error) {
        messages[comm.rank()] = error.what();
        throw;
      }
    });
    FAIL() << "run_ranks must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInfeasible);
    EXPECT_STREQ(error.what(), "no room on device 2");
  }
  for (int r : {0, 1, 3}) {
    EXPECT_EQ(messages[r], "aborted by rank 2: no room on device 2");
  }
}

TEST(RunRanks, LateRankIsWaitedFor) {
  run_ranks(3, [](Communicator& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    comm.barrier();
  });
}

TEST(SingleCommunicator, CopiesAndSendsNothing) {
  SingleCommunicator comm;
  const std::vector<Sizes> counts = {{9}};
  exchange_and_check(comm, counts, 0);
  Bytes in(2, std::byte{5});
  Bytes out(2);
  comm.all_gather(in, out, Purpose::kControl);
  EXPECT_EQ(in, out);
  comm.broadcast(in, 0, Purpose::kControl);
  comm.barrier();
  EXPECT_EQ(comm.traffic().bytes_sent, Traffic{}.bytes_sent);
  EXPECT_EQ(comm.traffic().num_collectives, 4U);
}

}  // namespace
}  // namespace coterie::comm
