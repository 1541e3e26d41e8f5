// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/routing/trace_file.hpp"
#include "coterie/plan/routing/trace_format.hpp"

namespace coterie::routing {
namespace {

/// Copies a plain struct out of the file; the caller checked the bounds.
template <typename Plain>
Plain copy_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  Plain value;
  std::memcpy(&value, bytes.data() + offset, sizeof(Plain));
  return value;
}

class FileTrace final : public Trace {
 public:
  explicit FileTrace(const std::filesystem::path& path) : file_(path), name_(path.string()) {
    const std::uint64_t header_end = read_header();
    read_index(header_end);
    count_rows();
  }

  [[nodiscard]] const TraceHeader& header() const override { return header_; }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::uint64_t num_rows(std::size_t slot) const override { return rows_.at(slot); }
  [[nodiscard]] LayerTrace layer(std::size_t slot, bool with_weights) const override;

 private:
  std::uint64_t read_header();
  void read_index(std::uint64_t header_end);
  void check_entry(const BlockEntry& entry, std::uint64_t offset, std::uint64_t end) const;
  void count_rows();
  [[nodiscard]] std::string place(const BlockEntry& entry) const;
  [[nodiscard]] std::uint64_t rows_of(BlockKind kind, std::size_t slot) const;
  void copy_blocks(BlockKind kind, std::size_t slot, std::span<std::byte> out) const;
  template <typename Value>
  [[nodiscard]] std::vector<Value> read_values(BlockKind kind, std::size_t slot) const;
  [[nodiscard]] std::shared_ptr<const std::vector<TokenInfo>> tokens_of(std::size_t slot) const;
  [[nodiscard]] ExpertSets read_counts(std::size_t slot) const;

  MappedFile file_;
  std::string name_;
  TraceHeader header_;
  std::vector<BlockEntry> index_;
  std::vector<std::uint64_t> rows_;      ///< [layers]
  std::vector<std::uint64_t> num_sets_;  ///< [layers]
  mutable std::shared_ptr<const std::vector<TokenInfo>> shared_tokens_;
};

std::uint64_t FileTrace::read_header() {
  const auto bytes = file_.bytes();
  COTERIE_REQUIRE(bytes.size() >= sizeof(TracePrelude) &&
                      std::memcmp(bytes.data(), kTraceMagic, sizeof(kTraceMagic)) == 0,
                  name_, ": byte 0: not a binary trace (no \"COTRACE\" at its start)");
  const auto prelude = copy_at<TracePrelude>(bytes, 0);
  COTERIE_REQUIRE(prelude.version == kTraceVersion, name_, ": byte 8: version ", prelude.version,
                  " of the trace format is not known here (known: ", kTraceVersion, ")");
  const std::uint64_t end = sizeof(TracePrelude) + padded(prelude.header_bytes);
  COTERIE_REQUIRE(end <= bytes.size(), name_, ": byte 12: a header of ", prelude.header_bytes,
                  " bytes does not fit in a file of ", bytes.size(),
                  " bytes: truncated or damaged");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(TracePrelude),
                              prelude.header_bytes);
  header_ = trace_header_from_json(parse_json(text, name_ + ": header"), name_ + ": header");
  return end;
}

void FileTrace::read_index(std::uint64_t header_end) {
  const auto bytes = file_.bytes();
  COTERIE_REQUIRE(bytes.size() >= header_end + sizeof(TraceTrailer), name_, ": byte ", bytes.size(),
                  ": the file ends before its index: truncated");
  const std::uint64_t trailer_offset = bytes.size() - sizeof(TraceTrailer);
  const auto trailer = copy_at<TraceTrailer>(bytes, trailer_offset);
  COTERIE_REQUIRE(std::memcmp(trailer.magic, kTraceEndMagic, sizeof(kTraceEndMagic)) == 0, name_,
                  ": byte ", trailer_offset, ": no end mark: truncated, or bytes were added");
  const std::uint64_t room = trailer_offset - header_end;
  COTERIE_REQUIRE(
      trailer.num_blocks <= room / sizeof(BlockEntry) &&
          trailer.index_offset == trailer_offset - trailer.num_blocks * sizeof(BlockEntry),
      name_, ": byte ", trailer_offset, ": an index of ", trailer.num_blocks, " blocks at byte ",
      trailer.index_offset, " does not fit: truncated or damaged");
  const auto index = bytes.subspan(trailer.index_offset, trailer_offset - trailer.index_offset);
  const std::uint64_t hash = Hash()
                                 .add(bytes.first(header_end))
                                 .add(index)
                                 .add(trailer.index_offset)
                                 .add(trailer.num_blocks)
                                 .value();
  COTERIE_REQUIRE(hash == trailer.hash, name_, ": byte ", trailer_offset,
                  ": header or index fail their checksum: damaged");
  index_.resize(trailer.num_blocks);
  std::memcpy(index_.data(), index.data(), index.size());
  std::uint64_t offset = header_end;
  for (const BlockEntry& entry : index_) {
    check_entry(entry, offset, trailer.index_offset);
    offset += padded(entry.rows * row_bytes(entry.kind, header_.top_k));
  }
  COTERIE_REQUIRE(offset == trailer.index_offset, name_, ": byte ", offset, ": ",
                  trailer.index_offset - offset, " bytes belong to no block");
}

void FileTrace::check_entry(const BlockEntry& entry, std::uint64_t offset,
                            std::uint64_t end) const {
  const bool is_tokens = entry.kind == BlockKind::kTokens;
  const std::size_t slots = is_tokens && header_.shared_tokens ? 1 : header_.layers.size();
  COTERIE_REQUIRE(
      entry.kind >= BlockKind::kTokens && entry.kind <= BlockKind::kCounts && entry.slot < slots,
      name_, ": byte ", offset, ": a block of kind ", static_cast<std::uint32_t>(entry.kind),
      " for slot ", entry.slot, " of ", slots);
  const std::size_t width = row_bytes(entry.kind, header_.top_k);
  COTERIE_REQUIRE(entry.offset == offset && entry.rows > 0 &&
                      entry.rows <= (end - offset) / width &&
                      padded(entry.rows * width) <= end - offset,
                  place(entry), ": a block of ", entry.rows, " rows was expected at byte ", offset,
                  " and to end by byte ", end);
}

void FileTrace::count_rows() {
  const std::size_t num_layers = header_.layers.size();
  rows_.resize(num_layers);
  num_sets_.resize(num_layers);
  for (std::size_t slot = 0; slot < num_layers; ++slot) {
    const std::uint64_t expected = rows_of(BlockKind::kTokens, header_.shared_tokens ? 0 : slot);
    const std::uint64_t weights = rows_of(BlockKind::kWeights, slot);
    rows_[slot] = rows_of(BlockKind::kIds, slot);
    num_sets_[slot] = rows_of(BlockKind::kCounts, slot);
    COTERIE_REQUIRE(expected <= std::numeric_limits<std::uint32_t>::max(), name_, ": layer ",
                    header_.layers[slot], " has ", expected, " rows; 2^32 - 1 at most can be read");
    COTERIE_REQUIRE(rows_[slot] == expected, name_, ": layer ", header_.layers[slot], " has ",
                    rows_[slot], " rows for ", expected, " tokens");
    COTERIE_REQUIRE(weights == (header_.has_weights ? expected : 0), name_, ": layer ",
                    header_.layers[slot], " has ", weights, " rows of weights for ", expected,
                    " tokens");
    COTERIE_REQUIRE(num_sets_[slot] == 0 || (expected == 0 && !header_.shared_tokens), name_,
                    ": layer ", header_.layers[slot], " has both rows and counted sets");
  }
}

std::string FileTrace::place(const BlockEntry& entry) const {
  const bool shared = entry.kind == BlockKind::kTokens && header_.shared_tokens;
  const std::string whose =
      shared ? "tokens" : "layer " + std::to_string(header_.layers[entry.slot]);
  return name_ + ": " + whose + ": byte " + std::to_string(entry.offset);
}

std::uint64_t FileTrace::rows_of(BlockKind kind, std::size_t slot) const {
  std::uint64_t rows = 0;
  for (const BlockEntry& entry : index_) {
    rows += entry.kind == kind && entry.slot == slot ? entry.rows : 0;
  }
  return rows;
}

void FileTrace::copy_blocks(BlockKind kind, std::size_t slot, std::span<std::byte> out) const {
  for (const BlockEntry& entry : index_) {
    if (entry.kind == kind && entry.slot == slot) {
      const std::uint64_t size = entry.rows * row_bytes(kind, header_.top_k);
      const auto block = file_.bytes().subspan(entry.offset, padded(size));
      COTERIE_REQUIRE(Hash().add(block).value() == entry.hash, place(entry), ": ", block.size(),
                      " bytes fail their checksum: damaged");
      std::copy_n(block.begin(), size, out.begin());
      out = out.subspan(size);
      file_.release(entry.offset, block.size());
    }
  }
}

template <typename Value>
std::vector<Value> FileTrace::read_values(BlockKind kind, std::size_t slot) const {
  const std::uint64_t bytes = rows_of(kind, slot) * row_bytes(kind, header_.top_k);
  std::vector<Value> values(bytes / sizeof(Value));
  copy_blocks(kind, slot, std::as_writable_bytes(std::span(values)));
  return values;
}

std::shared_ptr<const std::vector<TokenInfo>> FileTrace::tokens_of(std::size_t slot) const {
  if (header_.shared_tokens && shared_tokens_) {
    return shared_tokens_;
  }
  auto tokens = std::make_shared<const std::vector<TokenInfo>>(
      read_values<TokenInfo>(BlockKind::kTokens, header_.shared_tokens ? 0 : slot));
  check_tokens(*tokens, header_, name_ + ": tokens: ");
  if (header_.shared_tokens) {
    shared_tokens_ = tokens;
  }
  return tokens;
}

ExpertSets FileTrace::read_counts(std::size_t slot) const {
  const auto bytes = read_values<std::byte>(BlockKind::kCounts, slot);
  const std::size_t width = row_bytes(BlockKind::kCounts, header_.top_k);
  ExpertSets counts;
  counts.num_experts = header_.num_experts;
  for (std::size_t begin = 0; begin < bytes.size(); begin += width) {
    counts.tokens.push_back(copy_at<std::uint32_t>(bytes, begin));
    for (std::size_t at = begin + sizeof(std::uint32_t); at < begin + width;
         at += sizeof(std::uint16_t)) {
      const auto id = copy_at<std::uint16_t>(bytes, at);
      if (id == kNoExpert) {
        break;
      }
      counts.experts.push_back(id);
    }
    counts.offsets.push_back(static_cast<std::uint32_t>(counts.experts.size()));
  }
  check_counts(counts, header_, name_ + ": layer " + std::to_string(header_.layers[slot]) + ": ");
  return counts;
}

LayerTrace FileTrace::layer(std::size_t slot, bool with_weights) const {
  LayerTrace layer;
  layer.layer = header_.layers.at(slot);
  layer.num_experts = header_.num_experts;
  layer.top_k = header_.top_k;
  if (num_sets_[slot] > 0) {
    layer.counts = read_counts(slot);
    return layer;
  }
  const std::string where = name_ + ": layer " + std::to_string(layer.layer) + ": ";
  layer.tokens = tokens_of(slot);
  layer.ids = read_values<std::uint16_t>(BlockKind::kIds, slot);
  check_rows(layer.ids, header_.top_k, header_.num_experts, where);
  if (with_weights) {
    layer.weights = read_values<float>(BlockKind::kWeights, slot);
    check_weights(layer.weights, header_, where);
  }
  return layer;
}

}  // namespace

std::unique_ptr<Trace> open_binary_trace(const std::filesystem::path& path) {
  return std::make_unique<FileTrace>(path);
}

}  // namespace coterie::routing
