// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/json_forward.hpp"
#include "coterie/plan/routing/expert_sets.hpp"

namespace coterie::routing {

/// Why a row of a trace takes no part in statistics. Bits of TokenInfo::flags.
enum TokenFlag : std::uint16_t {
  kPadding = 1,  ///< the token only fills a batch
  kWarmUp = 2,   ///< the token was run to warm an engine up
};

/// Where the token of a row comes from. 12 bytes, as in the binary file.
struct TokenInfo {
  std::uint32_t sequence = 0;  ///< number of the text; of an imported CSV: number of the file
  std::uint32_t position = 0;  ///< place in the text; of an imported CSV: 0-based data row
  std::uint16_t domain = 0;    ///< index into TraceHeader::domains
  std::uint16_t flags = 0;     ///< TokenFlag bits; 0 for a token that counts

  bool operator==(const TokenInfo&) const = default;
};
static_assert(sizeof(TokenInfo) == 12);

/// What a trace says about itself.
struct TraceHeader {
  std::string model_type = {};            ///< as in config.json ("olmoe"); empty if not known
  std::string model_fingerprint = {};     ///< hexadecimal, of the weights; empty if not known
  std::int32_t num_experts = 0;           ///< of every MoE layer
  std::int32_t top_k = 0;                 ///< experts a token, the width of a row
  std::vector<std::int32_t> layers = {};  ///< number of each MoE layer in the model, ascending
  std::vector<std::string> domains = {};  ///< names of the kinds of text, at least one
  std::string source = {};                ///< free text: where the tokens came from
  bool has_weights = false;               ///< routing weights are stored beside the ids
  bool shared_tokens = true;              ///< one token table for all layers; else one a layer

  bool operator==(const TraceHeader&) const = default;
};

Json to_json(const TraceHeader& header);

/// Reads what `to_json` wrote. Throws kBadInput naming `where` and the key.
TraceHeader trace_header_from_json(const Json& json, const std::string& where);

/// Throws kBadInput naming `where` and the breach: counts out of range, layers not ascending, no
/// domain or a repeated one, a fingerprint that is not hexadecimal.
void check_trace_header(const TraceHeader& header, const std::string& where);

/// Throws kBadInput, naming both places and both values, if the two speak of different models: the
/// number of experts or the experts a token differ, or model type or fingerprint are known to both
/// and differ. Layers are not compared.
void check_same_model(const TraceHeader& a, const std::string& where_a, const TraceHeader& b,
                      const std::string& where_b);

/// The routing of one MoE layer: rows of tokens, or (co-activation counts) sets with their counts.
struct LayerTrace {
  std::int32_t layer = 0;  ///< its number in the model
  std::int32_t num_experts = 0;
  std::int32_t top_k = 0;
  std::vector<std::uint16_t> ids;  ///< [num_rows, top_k]; kNoExpert where a token has fewer
  std::vector<float> weights;      ///< [num_rows, top_k] or empty
  std::shared_ptr<const std::vector<TokenInfo>> tokens;  ///< [num_rows]; null with `counts`
  std::optional<ExpertSets> counts;                      ///< instead of rows

  [[nodiscard]] std::size_t num_rows() const { return tokens ? tokens->size() : 0; }
  [[nodiscard]] std::span<const std::uint16_t> row(std::size_t r) const {
    const auto width = static_cast<std::size_t>(top_k);
    return std::span(ids).subspan(r * width, width);
  }
  /// Compares contents; token tables by value.
  bool operator==(const LayerTrace& other) const;
};

/// A routing trace that can be read layer by layer. Reading does not change it, but is not
/// thread-safe.
class Trace {
 public:
  Trace() = default;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  virtual ~Trace() = default;

  [[nodiscard]] virtual const TraceHeader& header() const = 0;
  /// Where it was read from, for messages.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Rows of layer `slot` (index into header().layers); 0 for a layer of counted sets.
  [[nodiscard]] virtual std::uint64_t num_rows(std::size_t slot) const = 0;
  /// The layer at `slot`. Weights are left out unless asked for. Throws kBadInput for damage.
  [[nodiscard]] virtual LayerTrace layer(std::size_t slot, bool with_weights = false) const = 0;
};

/// A trace held in memory.
class MemoryTrace final : public Trace {
 public:
  /// Checks the header, sizes and ids. `layers` in the order of header.layers.
  MemoryTrace(TraceHeader header, std::vector<LayerTrace> layers, std::string name);

  [[nodiscard]] const TraceHeader& header() const override { return header_; }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::uint64_t num_rows(std::size_t slot) const override;
  [[nodiscard]] LayerTrace layer(std::size_t slot, bool with_weights = false) const override;

 private:
  TraceHeader header_;
  std::vector<LayerTrace> layers_;
  std::string name_;
};

/// Several traces of one model read as one: the rows of a layer are those of the parts, one part
/// after another; domains are joined by name, sequences renumbered. A layer of counted sets may
/// stand in one part only. Throws kBadInput if parts contradict each other.
std::unique_ptr<Trace> join_traces(std::vector<std::unique_ptr<Trace>> parts);

}  // namespace coterie::routing
