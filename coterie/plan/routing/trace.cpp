// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/routing/trace.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/routing/trace_format.hpp"

namespace coterie::routing {
namespace {

void check_layer(const LayerTrace& layer, const TraceHeader& header, const std::string& where) {
  COTERIE_REQUIRE(layer.num_experts == header.num_experts && layer.top_k == header.top_k, where,
                  ": layer ", layer.layer, " has ", layer.num_experts, " experts and top-",
                  layer.top_k, ", the trace ", header.num_experts, " and top-", header.top_k);
  if (layer.counts) {
    check_counts(*layer.counts, header, where + ": layer " + std::to_string(layer.layer) + ": ");
    return;
  }
  COTERIE_REQUIRE(layer.tokens != nullptr, where, ": layer ", layer.layer, " has no token table");
  const std::size_t num_ids = layer.num_rows() * static_cast<std::size_t>(layer.top_k);
  COTERIE_REQUIRE(layer.ids.size() == num_ids, where, ": layer ", layer.layer, " has ",
                  layer.ids.size(), " ids for ", layer.num_rows(), " tokens of top-", layer.top_k);
  COTERIE_REQUIRE(layer.weights.size() == (header.has_weights ? num_ids : 0), where, ": layer ",
                  layer.layer, " has ", layer.weights.size(), " weights for ", num_ids, " ids");
  const std::string place = where + ": layer " + std::to_string(layer.layer) + ": ";
  check_rows(layer.ids, layer.top_k, layer.num_experts, place);
  check_weights(layer.weights, header, place);
  check_tokens(*layer.tokens, header, place);
}

bool is_hexadecimal(const std::string& text) {
  return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

bool LayerTrace::operator==(const LayerTrace& other) const {
  const bool same_tokens =
      tokens == other.tokens || (tokens && other.tokens && *tokens == *other.tokens);
  return same_tokens && layer == other.layer && num_experts == other.num_experts &&
         top_k == other.top_k && ids == other.ids && weights == other.weights &&
         counts == other.counts;
}

Json to_json(const TraceHeader& header) {
  return Json{{"format", kTraceFormat},
              {"version", kTraceVersion},
              {"model_type", header.model_type},
              {"model_fingerprint", header.model_fingerprint},
              {"num_experts", header.num_experts},
              {"top_k", header.top_k},
              {"layers", header.layers},
              {"domains", header.domains},
              {"has_weights", header.has_weights},
              {"shared_tokens", header.shared_tokens},
              {"source", header.source}};
}

TraceHeader trace_header_from_json(const Json& json, const std::string& where) {
  const JsonReader reader(json, where);
  if (reader.at("format").as_string() != kTraceFormat) {
    reader.at("format").refuse(join_message('"', kTraceFormat, '"'));
  }
  const std::int64_t version = reader.at("version").as_int(1, std::numeric_limits<int>::max());
  COTERIE_REQUIRE(version == kTraceVersion, where, ": version ", version,
                  " of the trace format is not known here (known: ", kTraceVersion, ")");
  TraceHeader header;
  header.model_type = reader.at("model_type").as_string();
  header.model_fingerprint = reader.at("model_fingerprint").as_string();
  header.num_experts = static_cast<std::int32_t>(reader.at("num_experts").as_int(1, kNoExpert - 1));
  header.top_k = static_cast<std::int32_t>(reader.at("top_k").as_int(1, header.num_experts));
  for (const std::int64_t layer :
       reader.at("layers").as_ints(0, std::numeric_limits<std::int32_t>::max())) {
    header.layers.push_back(static_cast<std::int32_t>(layer));
  }
  const JsonReader domains = reader.at("domains");
  for (std::size_t i = 0; i < domains.size(); ++i) {
    header.domains.push_back(domains.at(i).as_string());
  }
  header.has_weights = reader.at("has_weights").as_bool();
  header.shared_tokens = reader.at("shared_tokens").as_bool();
  header.source = reader.at("source").as_string();
  check_trace_header(header, where);
  return header;
}

void check_trace_header(const TraceHeader& header, const std::string& where) {
  COTERIE_REQUIRE(header.num_experts > 0 && header.num_experts < kNoExpert, where,
                  ": num_experts is ", header.num_experts, ", not in [1, ", kNoExpert - 1, "]");
  COTERIE_REQUIRE(header.top_k > 0 && header.top_k <= header.num_experts, where, ": top_k is ",
                  header.top_k, ", not in [1, ", header.num_experts, "]");
  COTERIE_REQUIRE(!header.layers.empty(), where, ": no MoE layer is named");
  for (std::size_t i = 0; i < header.layers.size(); ++i) {
    COTERIE_REQUIRE(header.layers[i] >= 0, where, ": layer number ", header.layers[i]);
    COTERIE_REQUIRE(i == 0 || header.layers[i - 1] < header.layers[i], where, ": layer ",
                    header.layers[i], " follows layer ", header.layers[i - 1],
                    "; layers must ascend");
  }
  COTERIE_REQUIRE(!header.domains.empty() && header.domains.size() <= 0xFFFF, where, ": ",
                  header.domains.size(), " domains are named; 1 to 65535 may be");
  std::set<std::string> names;
  for (const std::string& name : header.domains) {
    COTERIE_REQUIRE(names.insert(name).second, where, ": domain \"", name, "\" is named twice");
  }
  COTERIE_REQUIRE(is_hexadecimal(header.model_fingerprint), where, ": model fingerprint \"",
                  header.model_fingerprint, "\" is not lower-case hexadecimal");
}

void check_same_model(const TraceHeader& a, const std::string& where_a, const TraceHeader& b,
                      const std::string& where_b) {
  const auto require = [&](bool same, const char* what, const auto& value_a, const auto& value_b) {
    COTERIE_REQUIRE(same, where_b, ": of another model than ", where_a, ": ", what, " is ", value_b,
                    ", not ", value_a);
  };
  const auto agree = [](const std::string& x, const std::string& y) {
    return x.empty() || y.empty() || x == y;
  };
  require(a.num_experts == b.num_experts, "num_experts", a.num_experts, b.num_experts);
  require(a.top_k == b.top_k, "top_k", a.top_k, b.top_k);
  require(agree(a.model_type, b.model_type), "model_type", a.model_type, b.model_type);
  require(agree(a.model_fingerprint, b.model_fingerprint), "model_fingerprint", a.model_fingerprint,
          b.model_fingerprint);
}

void check_weights(std::span<const float> weights, const TraceHeader& header,
                   const std::string& where) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    COTERIE_REQUIRE(std::isfinite(weights[i]), where, "row ",
                    i / static_cast<std::size_t>(header.top_k), ": routing weight ", weights[i],
                    " is not finite");
  }
}

void check_tokens(std::span<const TokenInfo> tokens, const TraceHeader& header,
                  const std::string& where) {
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    COTERIE_REQUIRE(tokens[r].domain < header.domains.size(), where, "row ", r, ": domain ",
                    tokens[r].domain, " of ", header.domains.size());
    COTERIE_REQUIRE((tokens[r].flags & ~(kPadding | kWarmUp)) == 0, where, "row ", r,
                    ": unknown flags ", tokens[r].flags);
  }
}

void check_counts(const ExpertSets& counts, const TraceHeader& header, const std::string& where) {
  COTERIE_REQUIRE(counts.num_experts == header.num_experts, where, "sets of ", counts.num_experts,
                  " experts in a trace of ", header.num_experts);
  for (std::size_t s = 0; s < counts.num_sets(); ++s) {
    const auto set = counts.set(s);
    COTERIE_REQUIRE(!set.empty() && std::ssize(set) <= header.top_k && counts.tokens[s] > 0, where,
                    "set ", s, ": ", set.size(), " experts of top-", header.top_k, ", chosen by ",
                    counts.tokens[s], " tokens");
    for (std::size_t i = 0; i < set.size(); ++i) {
      COTERIE_REQUIRE(set[i] < header.num_experts, where, "set ", s, ": expert id ", set[i],
                      " is not in [0, ", header.num_experts, ")");
      COTERIE_REQUIRE(i == 0 || set[i - 1] < set[i], where, "set ", s, ": expert ", set[i],
                      " follows ", set[i - 1], "; ids must ascend");
    }
    COTERIE_REQUIRE(s == 0 || std::ranges::lexicographical_compare(counts.set(s - 1), set), where,
                    "set ", s, " is not behind the set before it");
  }
}

MemoryTrace::MemoryTrace(TraceHeader header, std::vector<LayerTrace> layers, std::string name)
    : header_(std::move(header)), layers_(std::move(layers)), name_(std::move(name)) {
  check_trace_header(header_, name_);
  COTERIE_REQUIRE(layers_.size() == header_.layers.size(), name_, ": ", layers_.size(),
                  " layers are given, the header names ", header_.layers.size());
  for (std::size_t slot = 0; slot < layers_.size(); ++slot) {
    LayerTrace& layer = layers_[slot];
    COTERIE_REQUIRE(layer.layer == header_.layers[slot], name_, ": layer ", layer.layer,
                    " stands where the header names layer ", header_.layers[slot]);
    check_layer(layer, header_, name_);
    if (header_.shared_tokens) {
      COTERIE_REQUIRE(layer.tokens && *layer.tokens == *layers_[0].tokens, name_, ": layer ",
                      layer.layer, " has another token table than layer ", layers_[0].layer);
      layer.tokens = layers_[0].tokens;
    }
  }
}

std::uint64_t MemoryTrace::num_rows(std::size_t slot) const {
  return layers_.at(slot).num_rows();
}

LayerTrace MemoryTrace::layer(std::size_t slot, bool with_weights) const {
  LayerTrace layer = layers_.at(slot);
  if (!with_weights) {
    layer.weights.clear();
  }
  return layer;
}

}  // namespace coterie::routing
