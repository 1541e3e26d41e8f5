// SPDX-License-Identifier: Apache-2.0
#include "tests/folders.hpp"
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

const std::filesystem::path kData = tests::shared_dir() / "data/routing";

#define SKIP_WITHOUT_DATA()                                                   \
  if (!std::filesystem::exists(kData)) {                                      \
    GTEST_SKIP() << "the real routing data is not there: " << kData.string(); \
  }

std::vector<std::filesystem::path> olmoe_files(int layer) {
  std::vector<std::filesystem::path> files;
  for (const char* domain : {"arxiv", "book", "github", "wikipedia"}) {
    files.push_back(
        kData / ("olmoe-1b-7b_" + std::string(domain) + "_layer" + std::to_string(layer) + ".csv"));
  }
  return files;
}

TEST(SharedData, OlmoeFilesAreOneLayer) {
  SKIP_WITHOUT_DATA();
  const auto trace = open_trace(olmoe_files(0));
  EXPECT_EQ(trace->header().num_experts, 64);
  EXPECT_EQ(trace->header().top_k, 8);
  EXPECT_EQ(trace->header().layers, std::vector<std::int32_t>{0});
  EXPECT_EQ(trace->header().domains,
            (std::vector<std::string>{"arxiv", "book", "github", "wikipedia"}));
  EXPECT_EQ(trace->num_rows(0), 2796U + 4378 + 4043 + 5660);
  const LayerTrace layer = trace->layer(0);
  const auto fit = select_rows(layer, {.part = Part::kFit});
  EXPECT_EQ(fit.size(), 1398U + 2189 + 2022 + 2830);
  EXPECT_EQ(select_rows(layer, {.part = Part::kHeldOut}).size(), 1398U + 2189 + 2021 + 2830);
  const ReplicaBounds bounds = replica_bounds(select_sets(layer), even_device_sizes(64, 8));
  EXPECT_NEAR(bounds.random, 5.433, 5e-4);
  EXPECT_GT(bounds.star, 1.3);
  EXPECT_LT(bounds.star, 4.0);
  std::vector<std::int32_t> contiguous(64);
  for (std::size_t e = 0; e < 64; ++e) {
    contiguous[e] = static_cast<std::int32_t>(e / 8);
  }
  const ReplicaStats stats = count_replicas(select_sets(layer), contiguous, 8);
  EXPECT_GT(stats.replicas_per_token(), bounds.star);
  EXPECT_NEAR(stats.replicas_per_token(), bounds.random, 0.3);
}

// Means over 32 layers of the contiguous placement, known from enumeration: 1.585 and 1.870.
TEST(SharedData, LlamaMoeContiguousFigures) {
  SKIP_WITHOUT_DATA();
  const auto trace = open_trace(kData / "llama-moe-3.5b_coactivation.csv");
  ASSERT_EQ(trace->header().layers.size(), 32U);
  EXPECT_EQ(trace->header().num_experts, 8);
  double two = 0;
  double four = 0;
  for (std::size_t slot = 0; slot < 32; ++slot) {
    const ExpertSets sets = select_sets(trace->layer(slot), {.part = Part::kFit});
    EXPECT_EQ(sets.num_tokens(), 204800U);
    two += count_replicas(sets, std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 1}, 2)
               .replicas_per_token() /
           32;
    four += count_replicas(sets, std::vector<std::int32_t>{0, 0, 1, 1, 2, 2, 3, 3}, 4)
                .replicas_per_token() /
            32;
  }
  EXPECT_NEAR(two, 1.585, 5e-4);
  EXPECT_NEAR(four, 1.870, 5e-4);
}

TEST(SharedData, LoadsAreNoTrace) {
  SKIP_WITHOUT_DATA();
  expect_refused([] { open_trace(kData / "olmoe-1b-7b_expert_counts.csv"); }, {"loads of experts"});
}

}  // namespace
}  // namespace coterie::routing
