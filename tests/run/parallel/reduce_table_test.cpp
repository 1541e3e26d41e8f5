// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coterie/base/json.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::parallel {
namespace {

TEST(ReduceTable, EachKindIsSummedOverItsGroup) {
  const Layout layout({4, 2, 2, 2, 2});
  const auto size = [&](ParameterKind kind) {
    return reduce_entry("p", kind, {1}, layout).group_size;
  };
  EXPECT_EQ(size(ParameterKind::kReplicated), 8);
  EXPECT_EQ(size(ParameterKind::kGate), 8);
  EXPECT_EQ(size(ParameterKind::kTiedEmbedding), 16);
  EXPECT_EQ(size(ParameterKind::kHeadShard), 4);
  EXPECT_EQ(size(ParameterKind::kExpert), 2);
}

TEST(ReduceTable, EachElementOfAModelIsHeldByRanksOfItsGroupOnly) {
  // Shards of a parameter times the ranks that hold one are the ranks of a stage.
  for (const LayoutOptions options : {LayoutOptions{4, 2, 2, 2, 1}, LayoutOptions{2, 4, 4, 2, 1}}) {
    const Layout layout(options);
    EXPECT_EQ(layout.size_of(reduce_group(ParameterKind::kHeadShard)) * options.model,
              layout.stage_size());
    EXPECT_EQ(layout.size_of(reduce_group(ParameterKind::kExpert)) * options.expert *
                  options.expert_shard,
              layout.stage_size());
  }
}

TEST(ReduceTable, PrintsOneLineForAllLayers) {
  const Layout layout({2, 1, 2, 1, 1});
  ReduceTable table;
  for (const char* layer : {"0", "1", "2"}) {
    const std::string base = std::string("model.layers.") + layer;
    table.push_back(reduce_entry(base + ".mlp.gate.weight", ParameterKind::kGate, {8, 16}, layout));
    table.push_back(
        reduce_entry(base + ".mlp.experts.down_proj", ParameterKind::kExpert, {4, 16, 8}, layout));
  }
  table.push_back(reduce_entry("model.norm.weight", ParameterKind::kReplicated, {16}, layout));
  const std::vector<std::string> lines = {
      "parameter                                  kind            summed over  ranks  scale  shape "
      "here",
      "model.layers.{0..2}.mlp.gate.weight        gate            stage            2      1  [8, "
      "16]",
      "model.layers.{0..2}.mlp.experts.down_proj  expert          expert_data      1      1  "
      "[4, 16, 8]",
      "model.norm.weight                          replicated      stage            2      1  [16]",
  };
  std::string expected;
  for (const std::string& line : lines) {
    expected += line + "\n";
  }
  EXPECT_EQ(format_table(table), expected);
  EXPECT_EQ(to_json(table)[1]["group"], "expert_data");
}

}  // namespace
}  // namespace coterie::parallel
