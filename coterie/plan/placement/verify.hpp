// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace coterie::placement {

/// A second opinion on placement files. It shares no code with what writes them: it reads the JSON
/// by itself, checks every law again, and counts devices a token by brute force. Slow and obvious.

/// Figures that a file states, or that were counted. Ratios without tokens are 0.
struct VerifiedFigures {
  std::uint64_t num_tokens = 0;
  double replicas = 0;
  double bottleneck_replicas = 0;
  double load_imbalance = 0;
  double receive_imbalance = 0;
};

struct VerifiedLayer {
  std::int32_t layer = 0;  ///< number in the model; of foreign files: the place in the file
  std::int32_t num_experts = 0;
  std::vector<std::vector<std::int32_t>> holders;  ///< [num_experts] devices with a copy, ascending
  std::vector<std::uint32_t> prices;               ///< [num_devices]
  std::int32_t fewest_slots = 0;                   ///< of a device
  std::int32_t most_slots = 0;
  std::optional<VerifiedFigures> stated_fit;
  std::optional<VerifiedFigures> stated_held_out;
};

struct VerifiedFile {
  std::string
      kind;  ///< "coterie", "sglang" (physical_to_logical_map) or "vllm" (expert_to_ep_rank)
  std::string fit_rows;  ///< which rows stated_fit counts; empty if unknown
  std::string model_fingerprint;  ///< of the model that was traced; empty if unknown
  std::string trace_fingerprint;  ///< of the trace that was counted; empty if unknown
  std::int32_t num_devices = 0;
  std::optional<double> load_cap;  ///< only of algorithms that keep it
  std::vector<VerifiedLayer> layers;
};

/// Reads and checks a file; throws kBadInput naming file, layer and breach. `num_devices`: needed
/// for SGLang files, which do not say it (all devices then hold equally many slots); where a file
/// does say it, 0 or the same number.
VerifiedFile verify_placement_file(const std::filesystem::path& path, std::int32_t num_devices = 0);

/// Counts tokens one by one. Experts with copies are served by trying every combination: fewest
/// devices, then lowest cost as docs/file_formats.md defines it.
class BruteForceCount {
 public:
  /// `layer` must outlive it.
  BruteForceCount(const VerifiedLayer& layer, std::int32_t num_devices);
  /// Adds `num_tokens` tokens that chose these experts (0xFFFF: no expert). kBadInput for an id
  /// that the placement lacks.
  void add(std::span<const std::uint16_t> experts, std::uint64_t num_tokens);
  [[nodiscard]] VerifiedFigures figures() const;

 private:
  const VerifiedLayer& layer_;
  std::uint64_t num_tokens_ = 0;
  std::vector<std::uint64_t> rows_;
  std::vector<std::uint64_t> picks_;
};

}  // namespace coterie::placement
