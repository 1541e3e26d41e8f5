// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/metrics.hpp"

#include <sstream>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

namespace coterie::training {

Json to_json(const StepMetrics& m) {
  return {{"step", m.step},
          {"loss", m.loss},
          {"aux_loss", m.aux_loss},
          {"gradient_norm", m.gradient_norm},
          {"clip_factor", m.clip_factor},
          {"rate", m.rate},
          {"num_tokens", m.num_tokens},
          {"seconds", m.seconds},
          {"tokens_per_s", m.tokens_per_s},
          {"mfu", m.mfu},
          {"imbalance", m.imbalance},
          {"device_imbalance", m.device_imbalance},
          {"replicas_per_token", m.replicas_per_token},
          {"num_dropped", m.num_dropped},
          {"bytes_sent", m.bytes_sent},
          {"peak_memory_bytes", m.peak_memory_bytes}};
}

Json to_json(const EvaluationMetrics& m) {
  Json sources = Json::array();
  for (const EvaluationMetrics::Source& source : m.sources) {
    Json entry = {{"name", source.name}, {"loss", source.loss}};
    if (source.bits_per_byte > 0) {
      entry["bits_per_byte"] = source.bits_per_byte;
    }
    sources.push_back(entry);
  }
  return {{"step", m.step}, {"held_out", {{"loss", m.loss}, {"sources", sources}}}};
}

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t last_step) : path_(path) {
  std::string kept;
  if (std::filesystem::exists(path)) {
    std::istringstream lines(read_text_file(path));
    for (std::string line; std::getline(lines, line);) {
      // A line that is cut was being written when the run was killed.
      const Json row = Json::parse(line, nullptr, false);
      if (row.is_object() && row.contains("step") && row["step"].is_number_integer() &&
          row["step"].get<std::int64_t>() <= last_step) {
        kept += line + '\n';
      }
    }
  }
  write_text_file(path, kept);
  out_.open(path, std::ios::app);
}

void MetricsFile::append(const Json& line) {
  out_ << line.dump() + "\n" << std::flush;
  if (!out_) {
    fail(ErrorCode::kIo, path_.string(), ": cannot write");
  }
}

}  // namespace coterie::training
