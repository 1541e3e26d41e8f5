// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/routing/text_lines.hpp"
#include "coterie/plan/routing/trace_file.hpp"
#include "coterie/plan/routing/trace_format.hpp"

namespace coterie::routing {
namespace {

struct FlagName {
  TokenFlag flag;
  const char* name;
};
constexpr std::array<FlagName, 2> kFlagNames = {{{kPadding, "padding"}, {kWarmUp, "warm-up"}}};

constexpr std::int64_t kMaxU32 = std::numeric_limits<std::uint32_t>::max();

Json ids_json(std::span<const std::uint16_t> ids) {
  Json list = Json::array();
  for (const std::uint16_t id : ids) {
    list.push_back(id == kNoExpert ? -1 : static_cast<int>(id));
  }
  return list;
}

Json weights_of(const LayerTrace& layer, std::size_t r) {
  const auto width = static_cast<std::size_t>(layer.top_k);
  return Json(std::span(layer.weights).subspan(r * width, width));
}

Json token_json(const TokenInfo& token, const TraceHeader& header) {
  Json json{{"sequence", token.sequence},
            {"position", token.position},
            {"domain", header.domains[token.domain]}};
  if (token.flags != 0) {
    json["flags"] = Json::array();
    for (const FlagName& known : kFlagNames) {
      if ((token.flags & known.flag) != 0) {
        json["flags"].push_back(known.name);
      }
    }
  }
  return json;
}

/// Writes records and counts them.
class RecordWriter {
 public:
  explicit RecordWriter(const std::filesystem::path& path) : file_(path) {}

  void write(const Json& record) {
    file_.write(record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    ++num_records_;
  }
  void finish() {
    write(Json{{"end_of_trace", num_records_ - 1}});
    file_.commit();
  }

 private:
  AtomicFile file_;
  std::uint64_t num_records_ = 0;
};

void write_shared(RecordWriter& out, const Trace& trace) {
  const TraceHeader& header = trace.header();
  std::vector<LayerTrace> layers;
  for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
    layers.push_back(trace.layer(slot, header.has_weights));
  }
  for (std::size_t r = 0; r < layers[0].num_rows(); ++r) {
    Json record = token_json((*layers[0].tokens)[r], header);
    record["experts"] = Json::array();
    for (const LayerTrace& layer : layers) {
      record["experts"].push_back(ids_json(layer.row(r)));
    }
    if (header.has_weights) {
      record["weights"] = Json::array();
      for (const LayerTrace& layer : layers) {
        record["weights"].push_back(weights_of(layer, r));
      }
    }
    out.write(record);
  }
}

void write_per_layer(RecordWriter& out, const Trace& trace) {
  const TraceHeader& header = trace.header();
  for (std::size_t slot = 0; slot < header.layers.size(); ++slot) {
    const LayerTrace layer = trace.layer(slot, header.has_weights);
    for (std::size_t s = 0; layer.counts && s < layer.counts->num_sets(); ++s) {
      out.write({{"layer", layer.layer},
                 {"experts", ids_json(layer.counts->set(s))},
                 {"tokens", layer.counts->tokens[s]}});
    }
    for (std::size_t r = 0; r < layer.num_rows(); ++r) {
      Json record{{"layer", layer.layer}};
      record.update(token_json((*layer.tokens)[r], header));
      record["experts"] = ids_json(layer.row(r));
      if (header.has_weights) {
        record["weights"] = weights_of(layer, r);
      }
      out.write(record);
    }
  }
}

/// Fills layers record by record.
class RecordReader {
 public:
  explicit RecordReader(TraceHeader header)
      : header_(std::move(header)),
        layers_(header_.layers.size()),
        tables_(header_.shared_tokens ? 1 : header_.layers.size()) {
    for (std::size_t slot = 0; slot < layers_.size(); ++slot) {
      layers_[slot].layer = header_.layers[slot];
      layers_[slot].num_experts = header_.num_experts;
      layers_[slot].top_k = header_.top_k;
      slot_of_layer_[header_.layers[slot]] = slot;
    }
    for (std::size_t i = 0; i < header_.domains.size(); ++i) {
      domain_of_name_[header_.domains[i]] = static_cast<std::uint16_t>(i);
    }
  }

  void add(const JsonReader& record) {
    if (header_.shared_tokens) {
      tables_[0].push_back(read_token(record));
      add_every_layer(record);
      return;
    }
    const JsonReader number = record.at("layer");
    const auto slot = slot_of_layer_.find(
        static_cast<std::int32_t>(number.as_int(0, std::numeric_limits<std::int32_t>::max())));
    if (slot == slot_of_layer_.end()) {
      number.refuse("a layer that the header names");
    }
    if (record.has("tokens")) {
      add_set(layers_[slot->second], record);
      return;
    }
    tables_[slot->second].push_back(read_token(record));
    add_row(layers_[slot->second], record.at("experts"));
    if (header_.has_weights) {
      add_weights(layers_[slot->second], record.at("weights"));
    }
  }

  std::unique_ptr<Trace> finish(const std::string& name) {
    for (std::size_t slot = 0; slot < layers_.size(); ++slot) {
      LayerTrace& layer = layers_[slot];
      if (layer.counts) {
        COTERIE_REQUIRE(tables_[slot].empty(), name, ": layer ", layer.layer,
                        " has both rows and counted sets");
      } else if (slot < tables_.size()) {
        layer.tokens = std::make_shared<const std::vector<TokenInfo>>(std::move(tables_[slot]));
      } else {
        layer.tokens = layers_[0].tokens;
      }
    }
    return std::make_unique<MemoryTrace>(std::move(header_), std::move(layers_), name);
  }

 private:
  TokenInfo read_token(const JsonReader& record) const {
    TokenInfo token;
    token.sequence = static_cast<std::uint32_t>(record.at("sequence").as_int(0, kMaxU32));
    token.position = static_cast<std::uint32_t>(record.at("position").as_int(0, kMaxU32));
    const auto domain = domain_of_name_.find(record.at("domain").as_string());
    if (domain == domain_of_name_.end()) {
      record.at("domain").refuse("a domain that the header names");
    }
    token.domain = domain->second;
    if (record.has("flags")) {
      const JsonReader flags = record.at("flags");
      for (std::size_t i = 0; i < flags.size(); ++i) {
        token.flags = static_cast<std::uint16_t>(token.flags | read_flag(flags.at(i)));
      }
    }
    return token;
  }

  static std::uint16_t read_flag(const JsonReader& flag) {
    const std::string name = flag.as_string();
    const auto known = std::find_if(kFlagNames.begin(), kFlagNames.end(),
                                    [&](const FlagName& f) { return f.name == name; });
    if (known == kFlagNames.end()) {
      flag.refuse("\"padding\" or \"warm-up\"");
    }
    return known->flag;
  }

  void require_size(const JsonReader& list, std::size_t size) const {
    if (list.size() != size) {
      list.refuse(join_message("a list of ", size));
    }
  }

  void add_every_layer(const JsonReader& record) {
    const JsonReader rows = record.at("experts");
    require_size(rows, layers_.size());
    for (std::size_t slot = 0; slot < layers_.size(); ++slot) {
      add_row(layers_[slot], rows.at(slot));
    }
    if (header_.has_weights) {
      const JsonReader weights = record.at("weights");
      require_size(weights, layers_.size());
      for (std::size_t slot = 0; slot < layers_.size(); ++slot) {
        add_weights(layers_[slot], weights.at(slot));
      }
    }
  }

  void add_row(LayerTrace& layer, const JsonReader& row) const {
    require_size(row, static_cast<std::size_t>(header_.top_k));
    const std::size_t before = layer.ids.size();
    for (const std::int64_t id : row.as_ints(-1, header_.num_experts - 1)) {
      layer.ids.push_back(id < 0 ? kNoExpert : static_cast<std::uint16_t>(id));
    }
    const auto ids = std::span<const std::uint16_t>(layer.ids).subspan(before);
    check_rows(ids, header_.top_k, header_.num_experts, row.place() + ": ");
  }

  void add_weights(LayerTrace& layer, const JsonReader& row) const {
    require_size(row, static_cast<std::size_t>(header_.top_k));
    for (std::size_t i = 0; i < row.size(); ++i) {
      layer.weights.push_back(static_cast<float>(row.at(i).as_double()));
    }
  }

  void add_set(LayerTrace& layer, const JsonReader& record) const {
    if (!layer.counts) {
      layer.counts.emplace();
      layer.counts->num_experts = header_.num_experts;
    }
    ExpertSets& counts = *layer.counts;
    for (const std::int64_t id : record.at("experts").as_ints(0, header_.num_experts - 1)) {
      counts.experts.push_back(static_cast<std::uint16_t>(id));
    }
    counts.offsets.push_back(static_cast<std::uint32_t>(counts.experts.size()));
    counts.tokens.push_back(static_cast<std::uint32_t>(record.at("tokens").as_int(1, kMaxU32)));
  }

  TraceHeader header_;
  std::vector<LayerTrace> layers_;
  std::vector<std::vector<TokenInfo>> tables_;
  std::map<std::int32_t, std::size_t> slot_of_layer_;
  std::map<std::string, std::uint16_t> domain_of_name_;
};

}  // namespace

void write_jsonl_trace(const std::filesystem::path& path, const Trace& trace) {
  RecordWriter out(path);
  out.write(to_json(trace.header()));
  if (trace.header().shared_tokens) {
    write_shared(out, trace);
  } else {
    write_per_layer(out, trace);
  }
  out.finish();
}

std::unique_ptr<Trace> read_jsonl_trace(const std::filesystem::path& path) {
  const std::string name = path.string();
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  LineReader lines(text, name);
  const auto first = lines.next();
  COTERIE_REQUIRE(first, name, ": the file is empty");
  RecordReader records(trace_header_from_json(parse_json(*first, lines.place()), lines.place()));
  std::int64_t num_records = 0;
  while (const auto line = lines.next()) {
    const Json json = parse_json(*line, lines.place());
    const JsonReader record(json, lines.place());
    if (record.has("end_of_trace")) {
      const std::int64_t expected = record.at("end_of_trace").as_int(0);
      COTERIE_REQUIRE(expected == num_records, lines.place(), ": ", num_records,
                      " records stand before the end, which says ", expected);
      COTERIE_REQUIRE(!lines.next(), lines.place(), ": a record behind the end of the trace");
      return records.finish(name);
    }
    records.add(record);
    ++num_records;
  }
  fail(ErrorCode::kBadInput, name, ": byte ", text.size(), ": the file ends after ", num_records,
       " records without \"end_of_trace\": truncated");
}

}  // namespace coterie::routing
