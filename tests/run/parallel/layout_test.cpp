// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::parallel {
namespace {

constexpr std::array<GroupKind, kNumGroupKinds> kKinds = {
    GroupKind::kWorld,      GroupKind::kStage,         GroupKind::kData,
    GroupKind::kModel,      GroupKind::kExpert,        GroupKind::kExpertShard,
    GroupKind::kExpertData, GroupKind::kExpertHolders, GroupKind::kPipeline,
    GroupKind::kEnds};

std::vector<LayoutOptions> all_small_layouts() {
  std::vector<LayoutOptions> layouts;
  for (int data = 1; data <= 4; ++data) {
    for (int model = 1; model <= 4; ++model) {
      for (int expert = 1; expert <= data * model; ++expert) {
        for (int shard = 1; shard <= data * model; ++shard) {
          for (int pipeline = 1; pipeline <= 3; ++pipeline) {
            if (data * model % (expert * shard) == 0) {
              layouts.push_back({data, model, expert, shard, pipeline});
            }
          }
        }
      }
    }
  }
  return layouts;
}

TEST(Layout, EveryRankIsInOneGroupOfEachKindAndAllHaveItsSize) {
  for (const LayoutOptions& options : all_small_layouts()) {
    const Layout layout(options);
    for (const GroupKind kind : kKinds) {
      for (int rank = 0; rank < layout.world_size(); ++rank) {
        const std::vector<int> members = layout.members(kind, rank);
        EXPECT_TRUE(std::ranges::is_sorted(members));
        EXPECT_TRUE(std::ranges::binary_search(members, rank));
        EXPECT_LT(layout.group_of(kind, rank), layout.world_size());
        if (kind != GroupKind::kEnds) {
          EXPECT_EQ(static_cast<int>(members.size()), layout.size_of(kind));
        }
        for (const int other : members) {
          ASSERT_EQ(layout.members(kind, other), members) << name_of(kind) << " " << rank;
        }
      }
    }
  }
}

TEST(Layout, MembersDifferInOneAxisOnly) {
  for (const LayoutOptions& options : all_small_layouts()) {
    const Layout layout(options);
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const Coordinates own = layout.coordinates(rank);
      for (int other = 0; other < layout.world_size(); ++other) {
        const Coordinates at = layout.coordinates(other);
        const bool stage = at.pipeline == own.pipeline;
        const bool place = at.data == own.data && at.model == own.model;
        const std::map<GroupKind, bool> expected = {
            {GroupKind::kWorld, true},
            {GroupKind::kStage, stage},
            {GroupKind::kData, stage && at.model == own.model},
            {GroupKind::kModel, stage && at.data == own.data},
            {GroupKind::kExpert,
             stage && at.expert_data == own.expert_data && at.expert_shard == own.expert_shard},
            {GroupKind::kExpertShard,
             stage && at.expert_data == own.expert_data && at.expert == own.expert},
            {GroupKind::kExpertData,
             stage && at.expert == own.expert && at.expert_shard == own.expert_shard},
            {GroupKind::kExpertHolders, stage && at.expert == own.expert},
            {GroupKind::kPipeline, place},
        };
        for (const auto& [kind, together] : expected) {
          const auto members = layout.members(kind, rank);
          ASSERT_EQ(std::ranges::binary_search(members, other), together)
              << format_options(options) << ": " << name_of(kind) << " of " << rank << ", "
              << other;
        }
      }
    }
  }
}

TEST(Layout, EndsAreFirstAndLastStage) {
  const Layout layout({2, 1, 1, 1, 3});
  EXPECT_EQ(layout.members(GroupKind::kEnds, 0), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(layout.members(GroupKind::kEnds, 5), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(layout.members(GroupKind::kEnds, 2), (std::vector<int>{2, 3}));
  EXPECT_EQ(Layout({2, 2, 2, 1, 1}).members(GroupKind::kEnds, 3), (std::vector<int>{0, 1, 2, 3}));
}

TEST(Layout, FsmoesLayoutOfTwoNodesOfFour) {
  const Layout layout({2, 4, 2, 4, 1});  // MP = ESP = a node, EP = DP = the nodes
  EXPECT_EQ(layout.members(GroupKind::kModel, 5), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(layout.members(GroupKind::kExpertShard, 5), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(layout.members(GroupKind::kExpert, 5), (std::vector<int>{1, 5}));
  EXPECT_EQ(layout.members(GroupKind::kData, 5), (std::vector<int>{1, 5}));
  EXPECT_EQ(layout.size_of(GroupKind::kExpertData), 1);
}

void expect_refused(const LayoutOptions& options, const std::string& part) {
  try {
    const Layout layout(options);
    FAIL() << format_options(options) << " must be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Layout, SizesThatDoNotFitAreRefusedWithBothValues) {
  expect_refused({2, 2, 3, 1, 1},
                 "expert = 3 times expert_shard = 1 is 3, which does not divide data = 2 times "
                 "model = 2 (4 ranks a stage)");
  expect_refused({1, 1, 2, 1, 4}, "expert = 2");
  expect_refused({0, 1, 1, 1, 1}, "data = 0 must be at least 1");
  expect_refused({1, 1, 1, 1, -2}, "pipeline = -2");
  EXPECT_THROW(static_cast<void>(Layout({1, 1, 1, 1, 3}).stage_of_layers(2)), Error);
  EXPECT_THROW(static_cast<void>(equal_share_of(6, 4, 0, "num_attention_heads", "model")), Error);
}

TEST(Layout, SharesCoverWithoutGap) {
  for (const std::int64_t count : {0, 1, 7, 8}) {
    std::int64_t next = 0;
    for (int part = 0; part < 3; ++part) {
      const Share share = share_of(count, 3, part);
      EXPECT_EQ(share.begin, next);
      EXPECT_LE(std::abs(share.size() - count / 3), 1);
      next = share.end;
    }
    EXPECT_EQ(next, count);
  }
  EXPECT_EQ(Layout({1, 1, 1, 1, 3}).stage_of_layers(5), (std::vector<int>{0, 0, 1, 1, 2}));
}

TEST(Layout, TableAndJsonSayTheSame) {
  const Layout layout({2, 2, 2, 1, 2});
  const std::string table = layout.table();
  EXPECT_NE(table.find("8 ranks, 2 copies of the experts"), std::string::npos) << table;
  EXPECT_NE(table.find("expert             2  0 1 | 2 3 | 4 5 | 6 7"), std::string::npos) << table;
  const Json json = layout.to_json();
  EXPECT_EQ(json["groups"]["expert"].dump(), "[[0,1],[2,3],[4,5],[6,7]]");
  EXPECT_EQ(json["ranks"][5]["expert"], 1);
  EXPECT_EQ(layout_options_from_json(json["sizes"], "test"), layout.options());
  EXPECT_THROW(layout_options_from_json(Json{{"tensor", 2}}, "test"), Error);
  EXPECT_THROW(layout_options_from_json(Json{{"data", 0}}, "test"), Error);
}

}  // namespace
}  // namespace coterie::parallel
