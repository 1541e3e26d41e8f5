// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace coterie::cli {

/// Where sequences come from and how they are cut.
struct TokenInputFlags {
  std::vector<std::string> texts;  ///< text files, for the model's tokenizer
  std::string tokens;              ///< a file of token ids: JSON lines, each a list of ids
  std::int64_t sequence_length = 256;
  std::int64_t max_tokens = 4096;  ///< in all; 0: no limit
};

/// [sequences] of token ids. Texts are cut into sequences of `sequence_length` (the last of a file
/// may be shorter); lines of a token file stand as they are. kBadInput names file and line.
std::vector<std::vector<std::int32_t>> read_sequences(const std::filesystem::path& model,
                                                      const TokenInputFlags& flags);

}  // namespace coterie::cli
