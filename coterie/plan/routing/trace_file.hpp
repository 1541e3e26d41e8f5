// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "coterie/plan/routing/trace.hpp"

namespace coterie::routing {

/// Writes a binary trace (docs/file_formats.md) piece by piece. Rows are buffered per layer and
/// written in blocks, so memory is bounded by layers x block rows. Nothing appears at `path` before
/// commit(). Errors: kIo names the file; kBadInput names layer and row. Not thread-safe.
class TraceWriter {
 public:
  TraceWriter(const std::filesystem::path& path, TraceHeader header,
              std::size_t rows_per_block = 16384);
  ~TraceWriter();

  /// Adds rows to a token table: `slot` is 0 with header.shared_tokens, else the layer's slot.
  void add_tokens(std::span<const TokenInfo> tokens, std::size_t slot = 0);
  /// Adds rows to the layer at `slot`: ids [n, top_k], weights [n, top_k] (empty if the header says
  /// that there are none). Layers may be added in any order and in pieces of any size.
  void add_rows(std::size_t slot, std::span<const std::uint16_t> ids,
                std::span<const float> weights = {});
  /// Makes the layer at `slot` a table of counted sets. Needs header.shared_tokens == false.
  void add_counts(std::size_t slot, const ExpertSets& counts);
  /// Checks that every layer has as many rows as its token table and puts the file in place.
  void commit();

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Writes a whole trace as a binary file.
void write_trace(const std::filesystem::path& path, const Trace& trace);

/// Opens a binary trace: checks header and index now, the rest layer by layer as it is read. The
/// file is mapped, and what was read is released, so that memory is that of one layer.
std::unique_ptr<Trace> open_binary_trace(const std::filesystem::path& path);

/// Writes a whole trace as JSON lines (docs/file_formats.md): for people and other tools.
void write_jsonl_trace(const std::filesystem::path& path, const Trace& trace);

/// Reads a trace written by write_jsonl_trace into memory.
std::unique_ptr<Trace> read_jsonl_trace(const std::filesystem::path& path);

}  // namespace coterie::routing
