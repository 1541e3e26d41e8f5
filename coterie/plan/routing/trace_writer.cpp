// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/routing/trace_file.hpp"
#include "coterie/plan/routing/trace_format.hpp"

namespace coterie::routing {

std::size_t row_bytes(BlockKind kind, std::int32_t top_k) {
  const auto width = static_cast<std::size_t>(top_k);
  switch (kind) {
    case BlockKind::kTokens: return sizeof(TokenInfo);
    case BlockKind::kIds: return width * sizeof(std::uint16_t);
    case BlockKind::kWeights: return width * sizeof(float);
    case BlockKind::kCounts: return sizeof(std::uint32_t) + width * sizeof(std::uint16_t);
  }
  return 0;
}

/// Rows of one kind of one layer that wait to fill a block.
struct Waiting {
  std::vector<std::byte> bytes;
  std::uint64_t rows = 0;  ///< added in all
};

class TraceWriter::State {
 public:
  State(const std::filesystem::path& path, TraceHeader trace_header, std::size_t block_rows)
      : name(path.string()),
        header(std::move(trace_header)),
        tokens(header.shared_tokens ? 1 : header.layers.size()),
        ids(header.layers.size()),
        weights(header.layers.size()),
        counts(header.layers.size()),
        file_(path),
        rows_per_block_(block_rows) {
    std::string text = to_json(header).dump(-1, ' ', false, Json::error_handler_t::replace);
    TracePrelude prelude{};
    std::memcpy(prelude.magic, kTraceMagic, sizeof(kTraceMagic));
    prelude.version = static_cast<std::uint32_t>(kTraceVersion);
    prelude.header_bytes = static_cast<std::uint32_t>(text.size());
    text.resize(padded(text.size()), '\0');
    const auto prelude_bytes = std::as_bytes(std::span(&prelude, 1));
    file_.write(prelude_bytes);
    file_.write(text);
    hash_.add(prelude_bytes).add(text);
  }

  void add(Waiting& waiting, BlockKind kind, std::size_t slot, std::span<const std::byte> bytes) {
    const std::size_t width = row_bytes(kind, header.top_k);
    waiting.rows += bytes.size() / width;
    const std::size_t block = rows_per_block_ * width;
    while (!bytes.empty()) {
      const std::size_t taken = std::min(bytes.size(), block - waiting.bytes.size());
      waiting.bytes.insert(waiting.bytes.end(), bytes.begin(),
                           bytes.begin() + static_cast<std::ptrdiff_t>(taken));
      bytes = bytes.subspan(taken);
      if (waiting.bytes.size() == block) {
        write_block(waiting, kind, slot);
      }
    }
  }

  void finish() {
    for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
      if (slot < tokens.size()) {
        write_block(tokens[slot], BlockKind::kTokens, slot);
      }
      write_block(ids[slot], BlockKind::kIds, slot);
      write_block(weights[slot], BlockKind::kWeights, slot);
      write_block(counts[slot], BlockKind::kCounts, slot);
    }
    TraceTrailer trailer{};
    trailer.index_offset = file_.size();
    trailer.num_blocks = index_.size();
    const auto index = std::as_bytes(std::span(index_));
    trailer.hash = hash_.add(index).add(trailer.index_offset).add(trailer.num_blocks).value();
    std::memcpy(trailer.magic, kTraceEndMagic, sizeof(kTraceEndMagic));
    file_.write(index);
    file_.write(std::as_bytes(std::span(&trailer, 1)));
    file_.commit();
  }

  std::string name;
  TraceHeader header;
  std::vector<Waiting> tokens;
  std::vector<Waiting> ids;
  std::vector<Waiting> weights;
  std::vector<Waiting> counts;

 private:
  void write_block(Waiting& waiting, BlockKind kind, std::size_t slot) {
    if (waiting.bytes.empty()) {
      return;
    }
    const std::uint64_t rows = waiting.bytes.size() / row_bytes(kind, header.top_k);
    waiting.bytes.resize(padded(waiting.bytes.size()));
    index_.push_back({kind, static_cast<std::uint32_t>(slot), rows, file_.size(),
                      Hash().add(waiting.bytes).value()});
    file_.write(waiting.bytes);
    waiting.bytes.clear();
  }

  AtomicFile file_;
  std::size_t rows_per_block_;
  Hash hash_;
  std::vector<BlockEntry> index_;
};

TraceWriter::TraceWriter(const std::filesystem::path& path, TraceHeader header,
                         std::size_t rows_per_block) {
  check_trace_header(header, path.string());
  COTERIE_CHECK(rows_per_block > 0, "a block without rows");
  state_ = std::make_unique<State>(path, std::move(header), rows_per_block);
}

TraceWriter::~TraceWriter() = default;

void TraceWriter::add_tokens(std::span<const TokenInfo> tokens, std::size_t slot) {
  State& state = *state_;
  COTERIE_CHECK(slot < state.tokens.size(), "token table ", slot, " of ", state.tokens.size());
  check_tokens(tokens, state.header, state.name + ": tokens: ");
  state.add(state.tokens[slot], BlockKind::kTokens, slot, std::as_bytes(tokens));
}

void TraceWriter::add_rows(std::size_t slot, std::span<const std::uint16_t> ids,
                           std::span<const float> weights) {
  State& state = *state_;
  const TraceHeader& header = state.header;
  COTERIE_CHECK(slot < header.layers.size(), "layer slot ", slot, " of ", header.layers.size());
  const std::string where = join_message(state.name, ": layer ", header.layers[slot],
                                         ": after row ", state.ids[slot].rows, ": ");
  COTERIE_REQUIRE(ids.size() % static_cast<std::size_t>(header.top_k) == 0, where, ids.size(),
                  " ids are no whole rows of ", header.top_k);
  COTERIE_REQUIRE(weights.size() == (header.has_weights ? ids.size() : 0), where, weights.size(),
                  " weights are given with ", ids.size(), " ids");
  check_rows(ids, header.top_k, header.num_experts, where);
  check_weights(weights, header, where);
  state.add(state.ids[slot], BlockKind::kIds, slot, std::as_bytes(ids));
  state.add(state.weights[slot], BlockKind::kWeights, slot, std::as_bytes(weights));
}

void TraceWriter::add_counts(std::size_t slot, const ExpertSets& counts) {
  State& state = *state_;
  const TraceHeader& header = state.header;
  COTERIE_CHECK(slot < header.layers.size() && !header.shared_tokens, "counts for slot ", slot);
  COTERIE_CHECK(state.counts[slot].rows == 0 && counts.num_sets() > 0,
                "counts are given once a layer and are not empty");
  check_counts(counts, header, join_message(state.name, ": layer ", header.layers[slot], ": "));
  std::vector<std::byte> record(row_bytes(BlockKind::kCounts, header.top_k));
  for (std::size_t s = 0; s < counts.num_sets(); ++s) {
    const auto set = counts.set(s);
    std::fill(record.begin(), record.end(), std::byte{0xFF});
    std::memcpy(record.data(), &counts.tokens[s], sizeof(std::uint32_t));
    std::memcpy(record.data() + sizeof(std::uint32_t), set.data(), set.size_bytes());
    state.add(state.counts[slot], BlockKind::kCounts, slot, record);
  }
}

void TraceWriter::commit() {
  State& state = *state_;
  for (std::size_t slot = 0; slot < state.header.layers.size(); ++slot) {
    const std::uint64_t tokens = state.tokens[state.header.shared_tokens ? 0 : slot].rows;
    COTERIE_REQUIRE(state.ids[slot].rows == tokens, state.name, ": layer ",
                    state.header.layers[slot], " has ", state.ids[slot].rows, " rows for ", tokens,
                    " tokens");
    COTERIE_REQUIRE(tokens == 0 || state.counts[slot].rows == 0, state.name, ": layer ",
                    state.header.layers[slot], " has both rows and counted sets");
  }
  state.finish();
}

void write_trace(const std::filesystem::path& path, const Trace& trace) {
  const TraceHeader& header = trace.header();
  TraceWriter writer(path, header);
  for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
    const LayerTrace layer = trace.layer(slot, header.has_weights);
    if (layer.counts && layer.counts->num_sets() > 0) {
      writer.add_counts(slot, *layer.counts);
    }
    if (layer.tokens && (slot == 0 || !header.shared_tokens)) {
      writer.add_tokens(*layer.tokens, slot);
    }
    writer.add_rows(slot, layer.ids, layer.weights);
  }
  writer.commit();
}

}  // namespace coterie::routing
