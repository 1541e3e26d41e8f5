// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"

namespace coterie::training {

/// One step, over all ranks; a line of metrics.jsonl. Units and formulas: docs/file_formats.md.
struct StepMetrics {
  std::int64_t step = 0;  ///< steps done, this one included
  double loss = 0;        ///< mean -log p a target, natural logarithm
  double aux_loss = 0;    ///< what was added to it (balance, z)
  double gradient_norm = 0;
  double clip_factor = 1;
  double rate = 0;
  std::int64_t num_tokens = 0;  ///< targets since the beginning of training
  double seconds = 0;           ///< of this step, evaluation and checkpoints left out
  double tokens_per_s = 0;
  double mfu = 0;                 ///< part of the matrix peak of all ranks together
  std::vector<double> imbalance;  ///< of each MoE layer: largest load of an expert over the mean
  double device_imbalance = 1;    ///< the same for devices, a mean over layers
  double replicas_per_token = 0;  ///< devices a token's row is needed on, a mean over layers
  std::int64_t num_dropped = 0;   ///< picks dropped by capacity, all layers
  std::uint64_t bytes_sent = 0;   ///< between ranks, of all ranks together
  std::int64_t peak_memory_bytes = 0;  ///< resident, of the largest rank so far
};

Json to_json(const StepMetrics& metrics);

/// The loss on held-out text.
struct EvaluationMetrics {
  std::int64_t step = 0;
  double loss = 0;  ///< mean -log p a target over all sources
  struct Source {
    std::string name;
    double loss = 0;
    double bits_per_byte = 0;  ///< 0 where the text's length is not known
  };
  std::vector<Source> sources;
};

Json to_json(const EvaluationMetrics& metrics);

/// metrics.jsonl: one JSON document a line, each line written whole. Opening it for a run that goes
/// on after step `last_step` drops the lines of later steps.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& path, std::int64_t last_step);
  void append(const Json& line);

 private:
  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace coterie::training
