// SPDX-License-Identifier: Apache-2.0
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

struct Shape {
  std::size_t num_tokens;
  std::int32_t top_k;
  std::int32_t num_experts;
  std::uint64_t one_none_in;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.num_tokens << "x" << shape.top_k << " of " << shape.num_experts;
}

class ExpertSetsShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(ExpertSetsShapes, FastEqualsReference) {
  const Shape shape = GetParam();
  Random random(7);
  const auto ids =
      random_ids(random, shape.num_tokens, shape.top_k, shape.num_experts, shape.one_none_in);
  const ExpertSets fast = make_expert_sets(ids, shape.top_k, shape.num_experts);
  EXPECT_EQ(fast, make_expert_sets_reference(ids, shape.top_k, shape.num_experts));
  EXPECT_EQ(fast.num_picks(),
            static_cast<std::uint64_t>(
                std::count_if(ids.begin(), ids.end(), [](auto id) { return id != kNoExpert; })));
  const auto loads = fast.expert_loads();
  EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), std::uint64_t{0}), fast.num_picks());
}

// 64-bit keys, exactly 64 bits, 128-bit keys, wider; none missing, some, most.
INSTANTIATE_TEST_SUITE_P(Routing, ExpertSetsShapes,
                         ::testing::Values(Shape{0, 2, 4, 0}, Shape{1, 1, 1, 0},
                                           Shape{500, 1, 3, 2}, Shape{500, 2, 4, 3},
                                           Shape{999, 8, 64, 0}, Shape{999, 8, 64, 5},
                                           Shape{300, 8, 255, 4}, Shape{300, 8, 256, 4},
                                           Shape{300, 4, 65534, 3}, Shape{300, 14, 256, 2},
                                           Shape{200, 20, 100, 2}, Shape{100, 7, 7, 6},
                                           Shape{50, 3, 6, 1}));

TEST(ExpertSets, WorkedExample) {
  const std::vector<std::uint16_t> ids = {2, 0, 0, 2, 1, kNoExpert, kNoExpert, kNoExpert};
  const ExpertSets sets = make_expert_sets(ids, 2, 3);
  EXPECT_EQ(sets.experts, (std::vector<std::uint16_t>{0, 2, 1}));
  EXPECT_EQ(sets.offsets, (std::vector<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(sets.tokens, (std::vector<std::uint32_t>{2, 1}));
  EXPECT_EQ(sets.num_tokens(), 3U);
  EXPECT_EQ(sets.num_picks(), 5U);
  EXPECT_EQ(sets.expert_loads(), (std::vector<std::uint64_t>{2, 1, 2}));
}

TEST(ExpertSets, OrderOfRowsAndIdsDoesNotMatter) {
  Random random(3);
  auto ids = random_ids(random, 200, 4, 12, 6);
  const ExpertSets sets = make_expert_sets(ids, 4, 12);
  std::vector<std::uint16_t> turned(ids.rbegin(), ids.rend());
  EXPECT_EQ(make_expert_sets(turned, 4, 12), sets);
}

TEST(ExpertSets, BadRowsAreRefused) {
  const std::vector<std::uint16_t> high = {0, 1, 2, 5};
  expect_refused([&] { make_expert_sets(high, 2, 5); }, {"row 1", "expert id 5", "[0, 5)"});
  const std::vector<std::uint16_t> twice = {0, 1, 2, 2};
  expect_refused([&] { make_expert_sets(twice, 2, 5); }, {"row 1", "expert 2", "twice"});
  expect_refused([&] { make_expert_sets(twice, 3, 5); }, {"4 ids", "rows of 3"});
  expect_refused([&] { make_expert_sets(twice, 0, 5); }, {"top_k is 0"});
  expect_refused([&] { make_expert_sets(twice, 2, 0xFFFF); }, {"num_experts is 65535"});
}

}  // namespace
}  // namespace coterie::routing
