// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "coterie/plan/routing/import.hpp"

/// What the importers share. Not part of the room's door.
namespace coterie::routing {

/// What one foreign file gave. header.num_experts is 0 where the file does not say it and the
/// options neither; highest_id then tells the least possible.
struct ImportedPart {
  TraceHeader header;
  std::vector<LayerTrace> layers;
  std::int32_t highest_id = -1;
  std::string name;
};

/// Each reads one file (`text` is its content) and throws kBadInput naming line, or byte.
ImportedPart import_sets_csv(const std::filesystem::path& path, std::string_view text,
                             const ImportOptions& options);
ImportedPart import_coactivation_csv(const std::filesystem::path& path, std::string_view text,
                                     const ImportOptions& options);
ImportedPart import_npy(const std::filesystem::path& path, std::string_view text,
                        const ImportOptions& options);
ImportedPart import_engine_jsonl(const std::filesystem::path& path, std::string_view text,
                                 const ImportOptions& options);

/// Marks padding (no expert in any layer) and warm-up rows in a part with one token table, and
/// puts the table, one domain named `domain`, into every layer.
void finish_token_rows(ImportedPart& part, std::vector<TokenInfo> tokens,
                       const ImportOptions& options);

}  // namespace coterie::routing
