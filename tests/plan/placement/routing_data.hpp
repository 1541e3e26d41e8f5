// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/random.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/routing/routing.hpp"

/// Made and real routing for the tests of this room.
namespace coterie::placement::testing {

/// `num_tokens` sets of `top_k` of `num_experts` experts. Experts are drawn with a skewed weight,
/// and preferably from the token's topic, so that there is something to find.
routing::ExpertSets random_sets(Random& random, std::int32_t num_experts, std::int32_t top_k,
                                std::size_t num_tokens);

/// A random placement of one copy each, sizes differing by at most one.
LayerPlacement random_placement(Random& random, std::int32_t num_experts, std::int32_t num_devices);

/// Devices of each set counted the slow, obvious way; single copies only.
std::uint64_t count_rows(const routing::ExpertSets& sets,
                         const std::vector<std::int32_t>& device_of);

/// Folder with the real data; empty if this machine lacks it.
std::filesystem::path real_data_folder();

/// Even (fit) and odd (held-out) data rows of the OLMoE files of one layer, domains joined.
std::pair<routing::ExpertSets, routing::ExpertSets> read_olmoe_halves(std::int32_t layer);

/// LLaMA-MoE pair counts: one set of two experts for each pair that occurs; 32 layers.
std::vector<routing::ExpertSets> read_llama_moe();

}  // namespace coterie::placement::testing
