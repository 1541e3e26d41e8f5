// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <tuple>

#include "cli/inspect.hpp"
#include "coterie/base/error.hpp"
#include "coterie/plan/routing/routing.hpp"

namespace coterie::cli {
namespace {

constexpr std::size_t kTopPairs = 3;

struct ExpertPair {
  std::size_t first = 0;
  std::size_t second = 0;
  std::uint64_t num_tokens = 0;
};

/// The pairs of experts that most tokens chose together; ties to the lowest numbers.
std::vector<ExpertPair> top_pairs(const routing::ExpertSets& sets) {
  const Matrix<std::uint64_t> counts = routing::count_pairs(sets);
  std::vector<ExpertPair> pairs;
  for (std::size_t i = 0; i < counts.rows(); ++i) {
    for (std::size_t j = i + 1; j < counts.rows(); ++j) {
      if (counts(i, j) > 0) {
        pairs.push_back({i, j, counts(i, j)});
      }
    }
  }
  const std::size_t kept = std::min(kTopPairs, pairs.size());
  std::partial_sort(pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(kept), pairs.end(),
                    [](const ExpertPair& a, const ExpertPair& b) {
                      return std::tie(b.num_tokens, a.first, a.second) <
                             std::tie(a.num_tokens, b.first, b.second);
                    });
  pairs.resize(kept);
  return pairs;
}

std::vector<std::uint64_t> tokens_of_domains(const routing::LayerTrace& layer,
                                             std::size_t num_domains) {
  std::vector<std::uint64_t> counts(num_domains, 0);
  if (layer.tokens) {
    for (const routing::TokenInfo& token : *layer.tokens) {
      counts[token.domain] += token.flags == 0 ? 1U : 0U;
    }
  }
  return counts;
}

struct LayerSummary {
  Json document;
  std::string row;
};

LayerSummary summarize(const routing::LayerTrace& layer) {
  const routing::ExpertSets sets = routing::select_sets(layer);
  const std::vector<std::uint64_t> loads = sets.expert_loads();
  const std::uint64_t most = loads.empty() ? 0 : *std::max_element(loads.begin(), loads.end());
  const std::uint64_t sum = std::accumulate(loads.begin(), loads.end(), std::uint64_t{0});
  const double mean =
      static_cast<double>(sum) / static_cast<double>(std::max<std::size_t>(1, loads.size()));
  const double imbalance = sum > 0 ? static_cast<double>(most) / mean : 0;
  const auto idle = std::count(loads.begin(), loads.end(), std::uint64_t{0});
  const routing::DroppedRows dropped =
      layer.tokens ? routing::count_dropped(layer) : routing::DroppedRows{};
  Json pairs = Json::array();
  std::string pair_text;
  for (const ExpertPair& pair : top_pairs(sets)) {
    pairs.push_back({{"experts", {pair.first, pair.second}}, {"num_tokens", pair.num_tokens}});
    pair_text += join_message(pair_text.empty() ? "" : "  ", pair.first, "+", pair.second, " (",
                              pair.num_tokens, ")");
  }
  LayerSummary summary;
  summary.document = {{"layer", layer.layer},
                      {"num_tokens", sets.num_tokens()},
                      {"num_distinct_sets", sets.num_sets()},
                      {"expert_load_max", most},
                      {"expert_load_mean", mean},
                      {"expert_load_imbalance", imbalance},
                      {"num_experts_without_tokens", idle},
                      {"top_pairs", std::move(pairs)},
                      {"dropped", routing::to_json(dropped)}};
  char text[128];
  std::snprintf(
      text, sizeof(text), "  %5d %10llu %10zu %9.2f %5lld %8llu  ", layer.layer,
      static_cast<unsigned long long>(sets.num_tokens()), sets.num_sets(), imbalance,
      static_cast<long long>(idle),
      static_cast<unsigned long long>(dropped.padding + dropped.warm_up + dropped.without_expert));
  summary.row = text + pair_text + "\n";
  return summary;
}

}  // namespace

Inspection inspect_trace(const std::filesystem::path& path, Progress& progress) {
  const auto trace = routing::open_trace(path);
  const routing::TraceHeader& header = trace->header();
  Json layers = Json::array();
  Json domains = Json::object();
  std::string domain_text;
  std::string table =
      "  layer     tokens       sets  max/mean  idle  dropped  experts chosen together (tokens)\n";
  progress.begin("reading layers", static_cast<std::int64_t>(header.layers.size()));
  for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
    const routing::LayerTrace layer = trace->layer(slot);
    if (slot == 0) {
      const auto counts = tokens_of_domains(layer, header.domains.size());
      for (std::size_t d = 0; d < counts.size(); ++d) {
        domains[header.domains[d]] = counts[d];
        domain_text += join_message(d == 0 ? "" : ", ", header.domains[d], " ", counts[d]);
      }
    }
    LayerSummary summary = summarize(layer);
    layers.push_back(std::move(summary.document));
    table += summary.row;
    progress.update(static_cast<std::int64_t>(slot) + 1);
  }
  progress.end();
  const auto known = [](const std::string& text) { return text.empty() ? "not known" : text; };
  Inspection found;
  found.document = {{"kind", "trace"},
                    {"path", path.string()},
                    {"header", routing::to_json(header)},
                    {"tokens_of_domain", std::move(domains)},
                    {"layers", std::move(layers)}};
  found.text =
      list_facts(
          "trace " + path.string(),
          {{"model", known(header.model_type) + ", fingerprint " + known(header.model_fingerprint)},
           {"experts", join_message(header.num_experts, ", ", header.top_k, " a token")},
           {"layers", join_message(header.layers.size())},
           {"weights", header.has_weights ? "recorded" : "not recorded"},
           {"tokens", domain_text + " (first layer)"},
           {"source", known(header.source)}}) +
      table;
  return found;
}

}  // namespace coterie::cli
