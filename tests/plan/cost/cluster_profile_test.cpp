// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/cluster_profile.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"
#include "tests/plan/cost/sample_profile.hpp"

namespace coterie::cost {
namespace {

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(ClusterProfile, FileRoundTripKeepsEveryByte) {
  const auto path = std::filesystem::temp_directory_path() / "coterie_cluster_profile_test.json";
  const ClusterProfile profile = sample_profile();
  write_profile(path, profile);
  const ClusterProfile read = read_profile(path);
  EXPECT_EQ(read, profile);
  EXPECT_EQ(format_profile(read), format_profile(profile));
  std::filesystem::remove(path);
}

TEST(ClusterProfile, EveryDamageIsRefusedWithItsPlace) {
  const Json good = to_json(sample_profile());
  const std::pair<std::string, std::function<void(Json&)>> damages[] = {
      {"/format", [](Json& j) { j["format"] = "coterie-placement"; }},
      {"/version", [](Json& j) { j["version"] = 2; }},
      {"unknown key \"nodes\"", [](Json& j) { j["nodes"] = 4; }},
      {"/num_nodes", [](Json& j) { j["num_nodes"] = 0; }},
      {"products", [](Json& j) { j.erase("products"); }},
      {"/products", [](Json& j) { j["products"]["pieces"][0]["alpha_s"] = -1e-6; }},
      {"/products/pieces/0/beta_s", [](Json& j) { j["products"]["pieces"][0]["beta_s"] = -1; }},
      {"/engines/0/exchange",
       [](Json& j) { j["engines"][0]["exchange"]["pieces"] = Json::array(); }},
      {"/engines/0/all_gather",
       [](Json& j) { j["engines"][0]["all_gather"]["pieces"][1]["alpha_s"] = 1; }},
      {"/engines/1/contention/compute",
       [](Json& j) { j["engines"][1]["contention"]["compute"]["compute"] = 0; }},
      {"two engines", [](Json& j) { j["engines"][1]["name"] = "nccl"; }},
      {"no engine", [](Json& j) { j["engines"] = Json::array(); }},
      {"/checks/0/measured_s", [](Json& j) { j["checks"][0]["measured_s"] = 0; }},
      {"/backward_attention", [](Json& j) { j["backward_attention"] = "two"; }},
  };
  for (const auto& [place, damage] : damages) {
    Json bad = good;
    damage(bad);
    const std::string message = message_of([&] { profile_from(bad, "cluster.json"); });
    EXPECT_NE(message.find(place), std::string::npos) << message;
    EXPECT_NE(message.find("cluster.json"), std::string::npos) << message;
  }
}

TEST(ClusterProfile, RandomDamageOfTheTextNeverReadsAsSomethingBroken) {
  const std::string text = format_profile(sample_profile());
  Random random(5);
  for (int round = 0; round < 3000; ++round) {
    std::string bad = text;
    bad[random.below(bad.size())] = static_cast<char>(32 + random.below(95));
    try {
      const ClusterProfile profile = profile_from(parse_json(bad, "x"), "x");
      EXPECT_EQ(profile_from(to_json(profile), "y"), profile);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    }
  }
}

TEST(ClusterProfile, EnginesGoByName) {
  const ClusterProfile profile = sample_profile();
  EXPECT_EQ(profile.engine().name, "nccl");
  EXPECT_EQ(profile.engine("copy_engine").name, "copy_engine");
  const std::string message = message_of([&] { (void)profile.engine("mpi"); });
  EXPECT_NE(message.find("nccl, copy_engine"), std::string::npos) << message;
}

TEST(VerifyProfile, JudgesFitsAndSelfChecks) {
  ClusterProfile profile = sample_profile();
  EXPECT_TRUE(verify_profile(profile).empty());
  profile.checks = {{"layer", check_prediction(1.2, 1)}};
  ASSERT_EQ(verify_profile(profile).size(), 1U);
  EXPECT_EQ(verify_profile(profile)[0].verdict, Verdict::kWarn);
  require_usable(profile, "x");
  profile.checks = {{"layer", check_prediction(1.3, 1)}};
  EXPECT_EQ(verify_profile(profile)[0].verdict, Verdict::kRefuse);
  EXPECT_NE(message_of([&] { require_usable(profile, "x.json"); }).find("x.json"),
            std::string::npos);
  profile = sample_profile();
  profile.products = CostModel(profile.products.pieces(), {3, 1, 2, 0.5, 0.3}, "x");
  EXPECT_EQ(verify_profile(profile).size(), 3U);  // error, few points, low R^2
}

TEST(WithNodes, FollowsTheBytesThatLeaveANode) {
  const ClusterProfile profile = sample_profile();
  EXPECT_EQ(with_nodes(profile, 4), profile);
  const ClusterProfile large = with_nodes(profile, 512);
  const Engine& before = profile.engine();
  const Engine& after = large.engine();
  EXPECT_EQ(large.num_devices(), 4096);
  EXPECT_NEAR(after.exchange.beta_s() / before.exchange.beta_s(), (511.0 / 512) / 0.75, 1e-12);
  EXPECT_NEAR(after.exchange.alpha_s() / before.exchange.alpha_s(), 4.5, 1e-12);
  EXPECT_NEAR(after.all_reduce.alpha_s() / before.all_reduce.alpha_s(), 511.0 / 3, 1e-9);
  EXPECT_EQ(after.all_gather, before.all_gather);
  EXPECT_THROW(with_nodes(profile, 1), Error);
  EXPECT_THROW(with_nodes(profile, 0), Error);
}

}  // namespace
}  // namespace coterie::cost
