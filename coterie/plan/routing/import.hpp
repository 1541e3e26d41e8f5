// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "coterie/plan/routing/trace.hpp"

namespace coterie::routing {

/// What a foreign file does not say.
struct ImportOptions {
  std::int32_t num_experts = 0;  ///< 0: highest id of all files + 1
  std::int32_t top_k = 0;        ///< for router logits (.npy) and base64 ids
  std::int32_t num_layers = 0;   ///< for base64 ids
  /// CSV files named *_layer{N}.csv become layer N; else every CSV file is layer 0.
  bool layer_from_name = false;
  /// A foreign trace that starts with at least so many equal rows (in all layers) was warmed up:
  /// those rows are marked. 0 turns this off.
  std::int32_t warm_up_rows = 16;
};

/// Opens one or several files as one trace, telling the kind by content: our binary and JSONL
/// formats; CSV of expert sets (`token_id,occurrences,x0,..`, each row counts once; the domain is
/// taken from the name `*_{domain}_layer{N}.csv`, else the stem); CSV of co-activation counts
/// (`layer,expert,e0,..`); .npy router logits or ids; vLLM- and SGLang-style JSONL. See
/// docs/file_formats.md. Throws kBadInput / kIo naming file and line or byte.
std::unique_ptr<Trace> open_trace(std::span<const std::filesystem::path> files,
                                  const ImportOptions& options = {});
std::unique_ptr<Trace> open_trace(const std::filesystem::path& file,
                                  const ImportOptions& options = {});

/// The k best of a row of router logits by softmax over all experts, ties to the lowest id, ids in
/// descending score. Throws kBadInput naming `where` for NaN. Reference of the import of logits.
void top_k_of_logits(std::span<const float> logits, std::span<std::uint16_t> ids,
                     std::span<float> weights, const std::string& where);

}  // namespace coterie::routing
