// SPDX-License-Identifier: Apache-2.0
// What a plan counts as parameters is what the ranks of a run hold.
#include "coterie/training/memory_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "coterie/training/decoder_model.hpp"

namespace coterie::training {
namespace {

/// The most bytes of parameters of any rank.
std::int64_t held_bytes(const Recipe& recipe) {
  std::int64_t most = 0;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(recipe.layout.world_size()), [&](comm::Communicator& world) {
    parallel::Groups groups(world, layout_of(recipe));
    const models::TrainableDecoder decoder(config_of(recipe), groups, {});
    std::int64_t bytes = 0;
    for (const models::TrainableParameter& parameter : decoder.parameters()) {
      bytes += static_cast<std::int64_t>(parameter.value.nbytes());
    }
    const std::scoped_lock lock(mutex);
    most = std::max(most, bytes);
  });
  return most;
}

std::int64_t planned_bytes(const Recipe& recipe) {
  for (const MemoryItem& item : plan_memory(recipe, 0).items) {
    if (item.name == "parameters") {
      return item.num_bytes;
    }
  }
  return -1;
}

TEST(MemoryPlan, CountsTheParametersThatRanksHold) {
  for (const std::string name : {"mixtral-toy", "gpt2-moe-toy", "olmoe-demo"}) {
    Recipe recipe = read_recipe(parse_json(bundled_recipe(name), name), name);
    for (const LayoutRecipe& layout :
         {LayoutRecipe{}, LayoutRecipe{2, 1, 2, 1, 1}, LayoutRecipe{2, 2, 2, 2, 1},
          LayoutRecipe{1, 2, 1, 2, 1}, LayoutRecipe{1, 1, 1, 1, 2}}) {
      recipe.layout = layout;
      EXPECT_EQ(planned_bytes(recipe), held_bytes(recipe))
          << name << ": data " << layout.data << ", model " << layout.model << ", expert "
          << layout.expert << ", shard " << layout.expert_shard << ", stages " << layout.pipeline;
    }
  }
}

}  // namespace
}  // namespace coterie::training
