// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "coterie/base/error.hpp"
#include "coterie/plan/cost/cluster_profile.hpp"

namespace coterie::cost {
namespace {

constexpr std::int32_t kFewPoints = 4;
constexpr double kLowRSquared = 0.9;

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %%", 100 * share);
  return text;
}

void judge_error(const std::string& what, double error, std::vector<Finding>& findings) {
  if (error > kWarnError) {
    findings.push_back({error > kRefuseError ? Verdict::kRefuse : Verdict::kWarn,
                        what + " is off by " + percent(error) + " (bounds: warn " +
                            percent(kWarnError) + ", refuse " + percent(kRefuseError) + ")"});
  }
}

void judge_model(const std::string& what, const CostModel& model, std::vector<Finding>& findings) {
  const FitQuality& fit = model.quality();
  if (fit.num_points == 0) {
    return;  // given by hand: nothing is claimed
  }
  judge_error(what + ": the worst fitted point", fit.largest_relative_error, findings);
  if (fit.num_points < kFewPoints) {
    findings.push_back(
        {Verdict::kWarn, what + ": fitted to " + std::to_string(fit.num_points) + " points only"});
  }
  if (fit.r_squared < kLowRSquared) {
    char text[64];
    std::snprintf(text, sizeof(text), ": R^2 is %.3f", fit.r_squared);
    findings.push_back({Verdict::kWarn, what + text});
  }
}

}  // namespace

std::vector<Finding> verify_profile(const ClusterProfile& profile) {
  std::vector<Finding> findings;
  judge_model("products", profile.products, findings);
  judge_model("attention", profile.attention, findings);
  for (const Engine& engine : profile.engines) {
    judge_model(engine.name + " exchange", engine.exchange, findings);
    judge_model(engine.name + " local_exchange", engine.local_exchange, findings);
    judge_model(engine.name + " all_gather", engine.all_gather, findings);
    judge_model(engine.name + " reduce_scatter", engine.reduce_scatter, findings);
    judge_model(engine.name + " all_reduce", engine.all_reduce, findings);
  }
  for (const ProfileCheck& check : profile.checks) {
    judge_error("self-check " + check.what, check.check.relative_error, findings);
  }
  return findings;
}

void require_usable(const ClusterProfile& profile, const std::string& where) {
  for (const Finding& finding : verify_profile(profile)) {
    COTERIE_REQUIRE(finding.verdict != Verdict::kRefuse, where, ": ", finding.message,
                    ": measure again");
  }
}

}  // namespace coterie::cost
