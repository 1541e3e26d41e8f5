// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/plan/routing/trace.hpp"
#include "coterie/plan/routing/trace_format.hpp"

namespace coterie::routing {
namespace {

/// Where a layer of the whole stands in a part.
struct LayerOfPart {
  std::size_t part = 0;
  std::size_t slot = 0;
};

class JoinedTrace final : public Trace {
 public:
  explicit JoinedTrace(std::vector<std::unique_ptr<Trace>> parts) : parts_(std::move(parts)) {
    join_headers();
    find_layers();
  }

  [[nodiscard]] const TraceHeader& header() const override { return header_; }
  [[nodiscard]] std::string name() const override {
    return parts_[0]->name() + " and " + std::to_string(parts_.size() - 1) + " more";
  }
  [[nodiscard]] std::uint64_t num_rows(std::size_t slot) const override {
    std::uint64_t rows = 0;
    for (const LayerOfPart& place : places_.at(slot)) {
      rows += parts_[place.part]->num_rows(place.slot);
    }
    return rows;
  }
  [[nodiscard]] LayerTrace layer(std::size_t slot, bool with_weights) const override;

 private:
  void join_headers();
  void find_layers();
  [[nodiscard]] std::uint32_t first_sequence(std::size_t part) const;

  std::vector<std::unique_ptr<Trace>> parts_;
  TraceHeader header_;
  std::vector<std::vector<std::uint16_t>> domain_of_part_;  ///< [parts][domain of the part]
  std::vector<std::vector<LayerOfPart>> places_;            ///< [layers]
  mutable std::vector<std::uint32_t> first_sequence_;       ///< [parts whose tokens were read + 1]
};

void JoinedTrace::join_headers() {
  header_ = parts_[0]->header();
  header_.domains.clear();
  header_.shared_tokens = false;
  std::set<std::int32_t> layers;
  std::map<std::string, std::uint16_t> domains;
  for (const auto& part : parts_) {
    const TraceHeader& other = part->header();
    check_same_model(header_, parts_[0]->name(), other, part->name());
    header_.has_weights = header_.has_weights && other.has_weights;
    for (std::string TraceHeader::*text :
         {&TraceHeader::model_type, &TraceHeader::model_fingerprint}) {
      header_.*text = (header_.*text).empty() ? other.*text : header_.*text;
    }
    if (part != parts_[0] && other.source != header_.source) {
      header_.source += (header_.source.empty() ? "" : "; ") + other.source;
    }
    layers.insert(other.layers.begin(), other.layers.end());
    std::vector<std::uint16_t>& numbers = domain_of_part_.emplace_back();
    for (const std::string& domain : other.domains) {
      const auto [found, is_new] =
          domains.emplace(domain, static_cast<std::uint16_t>(header_.domains.size()));
      numbers.push_back(found->second);
      if (is_new) {
        header_.domains.push_back(domain);
      }
    }
  }
  header_.layers.assign(layers.begin(), layers.end());
  check_trace_header(header_, name());
}

void JoinedTrace::find_layers() {
  places_.resize(header_.layers.size());
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const auto& layers = parts_[part]->header().layers;
    for (std::size_t slot = 0; slot < layers.size(); ++slot) {
      const auto at = std::lower_bound(header_.layers.begin(), header_.layers.end(), layers[slot]);
      places_[static_cast<std::size_t>(at - header_.layers.begin())].push_back({part, slot});
    }
  }
}

/// Number that the first sequence of a part gets: behind all sequences of the parts before it.
std::uint32_t JoinedTrace::first_sequence(std::size_t part) const {
  if (first_sequence_.empty()) {
    first_sequence_.push_back(0);
  }
  while (first_sequence_.size() <= part) {
    const Trace& before = *parts_[first_sequence_.size() - 1];
    const std::size_t slots = before.header().shared_tokens ? 1 : before.header().layers.size();
    std::uint32_t next = first_sequence_.back();
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const LayerTrace layer = before.layer(slot);
      for (std::size_t r = 0; r < layer.num_rows(); ++r) {
        next = std::max(next, first_sequence_.back() + (*layer.tokens)[r].sequence + 1);
      }
    }
    first_sequence_.push_back(next);
  }
  return first_sequence_[part];
}

LayerTrace JoinedTrace::layer(std::size_t slot, bool with_weights) const {
  const std::vector<LayerOfPart>& places = places_.at(slot);
  LayerTrace whole = parts_[places[0].part]->layer(places[0].slot, with_weights);
  COTERIE_REQUIRE(!whole.counts || places.size() == 1, parts_[places.back().part]->name(),
                  ": layer ", whole.layer, " also stands in ", parts_[places[0].part]->name(),
                  ", as counted sets, which are not joined");
  if (whole.counts) {
    return whole;
  }
  auto tokens = std::make_shared<std::vector<TokenInfo>>();
  for (const LayerOfPart& place : places) {
    if (place.part != places[0].part) {
      const LayerTrace part = parts_[place.part]->layer(place.slot, with_weights);
      COTERIE_REQUIRE(!part.counts, parts_[place.part]->name(), ": layer ", whole.layer,
                      " also stands in ", parts_[places[0].part]->name(),
                      "; counted sets are not joined");
      whole.ids.insert(whole.ids.end(), part.ids.begin(), part.ids.end());
      whole.weights.insert(whole.weights.end(), part.weights.begin(), part.weights.end());
      tokens->insert(tokens->end(), part.tokens->begin(), part.tokens->end());
    } else {
      *tokens = *whole.tokens;
    }
    const std::uint32_t first = first_sequence(place.part);
    const std::size_t added = parts_[place.part]->num_rows(place.slot);
    for (TokenInfo& token : std::span(*tokens).last(added)) {
      token.sequence += first;
      token.domain = domain_of_part_[place.part][token.domain];
    }
  }
  whole.tokens = std::move(tokens);
  if (!header_.has_weights) {
    whole.weights.clear();
  }
  return whole;
}

}  // namespace

std::unique_ptr<Trace> join_traces(std::vector<std::unique_ptr<Trace>> parts) {
  COTERIE_REQUIRE(!parts.empty(), "no trace is given");
  if (parts.size() == 1) {
    return std::move(parts[0]);
  }
  return std::make_unique<JoinedTrace>(std::move(parts));
}

}  // namespace coterie::routing
