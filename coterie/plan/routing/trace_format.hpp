// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>

#include "coterie/plan/routing/trace.hpp"

/// What writer, reader and importers of traces share. Not part of the room's door.
namespace coterie::routing {

inline constexpr const char* kTraceFormat = "coterie-trace";
inline constexpr std::int64_t kTraceVersion = 1;

// The binary layout, docs/file_formats.md. All numbers little-endian, blocks 8-byte aligned.
static_assert(std::endian::native == std::endian::little);

inline constexpr char kTraceMagic[8] = {'C', 'O', 'T', 'R', 'A', 'C', 'E', '\n'};
inline constexpr char kTraceEndMagic[8] = {'C', 'O', 'T', 'R', 'E', 'N', 'D', '\n'};

/// First bytes of the file; the header as JSON follows, padded with zeros to 8 bytes.
struct TracePrelude {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;  ///< of the JSON text, without padding
};
static_assert(sizeof(TracePrelude) == 16);

enum class BlockKind : std::uint32_t { kTokens = 1, kIds = 2, kWeights = 3, kCounts = 4 };

/// One entry of the index at the end of the file.
struct BlockEntry {
  BlockKind kind;
  std::uint32_t slot;    ///< layer slot; of kTokens the table: 0 if shared, else layer slot
  std::uint64_t rows;    ///< rows (of kCounts: sets) in this block
  std::uint64_t offset;  ///< of the first byte, in the file
  std::uint64_t hash;    ///< coterie::Hash of the block with its padding
};
static_assert(sizeof(BlockEntry) == 32);

/// Last bytes of the file.
struct TraceTrailer {
  std::uint64_t index_offset;
  std::uint64_t num_blocks;
  std::uint64_t hash;  ///< of everything before the first block, the index and the two numbers
  char magic[8];
};
static_assert(sizeof(TraceTrailer) == 32);

/// Bytes of one row of a block (without padding).
std::size_t row_bytes(BlockKind kind, std::int32_t top_k);

constexpr std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

/// Each throws kBadInput: `where` (ending in ": "), row, breach.
void check_weights(std::span<const float> weights, const TraceHeader& header,
                   const std::string& where);
void check_tokens(std::span<const TokenInfo> tokens, const TraceHeader& header,
                  const std::string& where);
void check_counts(const ExpertSets& counts, const TraceHeader& header, const std::string& where);

}  // namespace coterie::routing
