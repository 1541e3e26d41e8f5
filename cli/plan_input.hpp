// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "coterie/plan/cost/cost.hpp"
#include "coterie/plan/schedule/schedule.hpp"

namespace coterie::cli {

/// What `plan` and `simulate` both ask: the model's block, the batch, the cluster, how to plan.
struct PlanInput {
  std::filesystem::path model;  ///< folder with a config.json, or that file; empty: flags say all
  std::filesystem::path cluster;
  std::string engine;
  schedule::BlockShape shape;
  std::vector<std::string> schedules;
  std::string planner = "enumerate";
  bool weights_in_place = false;
  schedule::PlanOptions options;
  std::filesystem::path chart;         ///< SVG to write; empty: none
  std::filesystem::path trace_events;  ///< Perfetto trace to write; empty: none
  // What a config.json says of the experts; 0 where it is not given.
  std::int32_t num_experts = 0;
  std::int32_t top_k = 0;
  std::int32_t num_layers = 0;
};

void add_plan_input_flags(CLI::App& command, PlanInput& input);

/// Reads config.json where there is one (flags win), checks names. kBadInput names the flag that is
/// missing.
void complete_input(PlanInput& input);

/// A file to write and the flag that names it; an empty path: not asked for.
struct NamedOutput {
  const char* flag;
  std::filesystem::path path;
};

/// Refuses, before anything is written, outputs (these, the chart and the trace) that cannot be
/// created, that replace an input (these, the profile, the config) or one another.
void check_outputs(const PlanInput& input, std::vector<NamedOutput> outputs,
                   std::vector<std::filesystem::path> inputs);

/// The profile, refused if its own checks are off by more than 25%; smaller doubts are warnings.
cost::ClusterProfile read_usable_profile(const PlanInput& input, Console& console);

/// The profile for so many devices: whole nodes of the profile, or a part of one node.
cost::ClusterProfile fit_profile(const cost::ClusterProfile& profile, std::int32_t num_devices);

/// Writes the chart and the trace that were asked for.
void write_timeline(const PlanInput& input, const schedule::Timeline& timeline,
                    const std::string& title);

/// "3" or "2-4": chunk counts over layers.
std::string chunk_range(const std::vector<schedule::LayerPlan>& plans, schedule::Phase phase);

}  // namespace coterie::cli
