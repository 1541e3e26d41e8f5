// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "coterie/base/error.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::parallel {
namespace {

constexpr std::array<GroupKind, kNumGroupKinds> kKinds = {
    GroupKind::kWorld,      GroupKind::kStage,         GroupKind::kData,
    GroupKind::kModel,      GroupKind::kExpert,        GroupKind::kExpertShard,
    GroupKind::kExpertData, GroupKind::kExpertHolders, GroupKind::kPipeline,
    GroupKind::kEnds};

std::vector<int> ranks_in(comm::Communicator& group, int rank) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  group.all_gather(std::as_bytes(std::span(&rank, 1)), std::as_writable_bytes(std::span(ranks)),
                   comm::Purpose::kControl);
  return ranks;
}

TEST(Groups, AreThoseOfTheLayoutInRankOrder) {
  for (const LayoutOptions options :
       {LayoutOptions{}, LayoutOptions{4, 1, 2, 2, 1}, LayoutOptions{2, 2, 2, 2, 2},
        LayoutOptions{1, 2, 1, 2, 3}, LayoutOptions{3, 2, 3, 1, 1}}) {
    const Layout layout(options);
    comm::run_ranks(layout.world_size(), [&](comm::Communicator& world) {
      const Groups groups(world, layout);
      for (const GroupKind kind : kKinds) {
        EXPECT_EQ(ranks_in(groups.group(kind), world.rank()), layout.members(kind, world.rank()))
            << name_of(kind);
      }
      const int stage = groups.coordinates().pipeline;
      EXPECT_EQ(groups.previous_stage() != nullptr, stage > 0);
      EXPECT_EQ(groups.next_stage() != nullptr, stage + 1 < options.pipeline);
    });
  }
}

TEST(Groups, StagesPassRowsOnWithoutTheOthers) {
  const Layout layout({1, 1, 1, 1, 4});
  comm::run_ranks(4, [&](comm::Communicator& world) {
    const Groups groups(world, layout);
    int value = 1;
    if (comm::Communicator* previous = groups.previous_stage()) {
      previous->broadcast(std::as_writable_bytes(std::span(&value, 1)), 0,
                          comm::Purpose::kDispatch);
    }
    value *= world.rank() + 2;
    if (comm::Communicator* next = groups.next_stage()) {
      next->broadcast(std::as_writable_bytes(std::span(&value, 1)), 0, comm::Purpose::kDispatch);
    } else {
      EXPECT_EQ(value, 2 * 3 * 4 * 5);
    }
  });
}

TEST(Groups, TrafficIsCountedOnce) {
  const Layout layout({2, 2, 4, 1, 1});
  comm::run_ranks(4, [&](comm::Communicator& world) {
    Groups groups(world, layout);  // expert, stage and world are one group
    groups.reset_traffic();
    static_cast<void>(ranks_in(groups.expert(), 0));
    static_cast<void>(ranks_in(groups.model(), 0));
    EXPECT_EQ(groups.traffic().sent_for(comm::Purpose::kControl), 3 * sizeof(int) + sizeof(int));
    EXPECT_EQ(groups.traffic().num_collectives, 2U);
    EXPECT_EQ(&groups.expert(), &world);
  });
}

TEST(Groups, AWorldOfAnotherSizeIsRefused) {
  comm::SingleCommunicator world;
  EXPECT_THROW(Groups(world, Layout({2, 1, 1, 1, 1})), Error);
}

/// The message each rank ends with while rank 3 fails in its own part and the others wait in
/// theirs.
TEST(Groups, AFailureInOnePartEndsTheOthers) {
  std::mutex mutex;
  std::vector<std::string> messages(4);
  EXPECT_THROW(comm::run_ranks(4,
                               [&](comm::Communicator& world) {
                                 const Groups groups(world, Layout({2, 2, 1, 1, 1}));
                                 if (world.rank() == 3) {
                                   fail(ErrorCode::kInfeasible, "no room");
                                 }
                                 try {
                                   groups.model().barrier();  // 0 with 1, 2 with 3
                                   groups.data().barrier();   // 0 with 2, 1 with 3
                                   groups.data().barrier();
                                 } catch (const Error& error) {
                                   const std::scoped_lock lock(mutex);
                                   messages[static_cast<std::size_t>(world.rank())] = error.what();
                                   throw;
                                 }
                               }),
               Error);
  for (const int rank : {0, 1, 2}) {
    EXPECT_EQ(messages[static_cast<std::size_t>(rank)], "aborted by rank 3: no room");
  }
}

TEST(Groups, AbortInAPartOfOneIsHeard) {
  EXPECT_THROW(comm::run_ranks(2,
                               [](comm::Communicator& world) {
                                 const Groups groups(world, Layout({2, 1, 1, 1, 1}));
                                 if (world.rank() == 1) {
                                   groups.model().abort("gone");
                                 }
                                 world.barrier();
                               }),
               Error);
}

TEST(Groups, DifferentCallsInAPartAreRefusedByTheWorldsNumbers) {
  try {
    comm::run_ranks(4, [](comm::Communicator& world) {
      const Groups groups(world, Layout({2, 2, 1, 1, 1}));
      if (world.rank() == 2) {
        groups.model().barrier();
      } else {
        static_cast<void>(ranks_in(groups.model(), 0));
      }
      world.barrier();
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 2 calls barrier, rank 3 calls all_gather"),
              std::string::npos)
        << error.what();
  }
}

TEST(Groups, LateRankOfAPartIsNamedByTheWorldsNumber) {
  try {
    comm::run_ranks(
        4,
        [](comm::Communicator& world) {
          const Groups groups(world, Layout({2, 2, 1, 1, 1}));
          if (world.rank() == 3) {
            std::this_thread::sleep_for(std::chrono::milliseconds(400));
          }
          groups.model().barrier();
        },
        std::chrono::milliseconds(100));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 3 did not arrive within 100 ms"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace coterie::parallel
