// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/plan/routing/import_part.hpp"
#include "coterie/plan/routing/text_lines.hpp"

namespace coterie::routing {
namespace {

/// Keys under which engines and recorders put ids, in the order of the tokens they stand for.
constexpr std::array<const char*, 4> kIdKeys = {"prompt_routed_experts", "routed_experts",
                                                "topk_ids", "experts"};

/// Little-endian int32 numbers out of base64.
std::vector<std::int64_t> decode_base64(const JsonReader& place) {
  const std::string text = place.as_string();
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    static constexpr std::string_view kAlphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (c == '=') {
      break;
    }
    const std::size_t value = kAlphabet.find(c);
    if (value == std::string_view::npos) {
      place.refuse("base64 text");
    }
    bits = (bits << 6U) | static_cast<std::uint32_t>(value);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<std::uint8_t>(bits >> static_cast<unsigned>(num_bits)));
    }
  }
  if (bytes.size() % 4 != 0) {
    place.refuse("base64 of whole 4-byte numbers");
  }
  std::vector<std::int64_t> numbers(bytes.size() / 4);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::uint32_t number = 0;
    for (std::size_t b = 4; b > 0; --b) {
      number = (number << 8U) | bytes[i * 4 + b - 1];
    }
    numbers[i] = static_cast<std::int32_t>(number);
  }
  return numbers;
}

class EngineRecords {
 public:
  explicit EngineRecords(const ImportOptions& options)
      : options_(options),
        limit_(options.num_experts > 0 ? options.num_experts : kNoExpert - 1),
        top_k_(static_cast<std::size_t>(std::max(options.top_k, 0))) {
    if (options.num_layers > 0) {
      ids_.resize(static_cast<std::size_t>(options.num_layers));
    }
  }

  void add(const JsonReader& record) {
    domain_ = domain_number(record.has("domain") ? record.at("domain").as_string() : "");
    position_ = 0;
    const std::size_t before = tokens_.size();
    add_ids_of(record);
    COTERIE_REQUIRE(tokens_.size() > before || found_, record.place(),
                    ": no \"routed_experts\", \"topk_ids\" or \"experts\" in this record");
    ++sequence_;
  }

  ImportedPart finish(const std::filesystem::path& path) {
    COTERIE_REQUIRE(!tokens_.empty(), path.string(), ": no token in the file");
    ImportedPart part;
    part.name = path.string();
    part.highest_id = highest_;
    part.header.num_experts = options_.num_experts;
    part.header.top_k = static_cast<std::int32_t>(top_k_);
    part.header.source = path.filename().string();
    for (const auto& [name, number] : domains_) {
      part.header.domains.resize(std::max(part.header.domains.size(), number + 1));
      part.header.domains[number] = name.empty() ? path.stem().string() : name;
    }
    for (std::size_t l = 0; l < ids_.size(); ++l) {
      LayerTrace layer;
      layer.layer = static_cast<std::int32_t>(l);
      layer.top_k = part.header.top_k;
      layer.ids = std::move(ids_[l]);
      part.header.layers.push_back(layer.layer);
      part.layers.push_back(std::move(layer));
    }
    finish_token_rows(part, std::move(tokens_), options_);
    return part;
  }

 private:
  std::uint16_t domain_number(const std::string& name) {
    const auto number = domains_.emplace(name, domains_.size()).first->second;
    COTERIE_REQUIRE(number < 0xFFFF, "domain \"", name, "\" is one too many");
    return static_cast<std::uint16_t>(number);
  }

  /// Looks for ids here and in the places where engines nest them.
  void add_ids_of(const JsonReader& record) {
    found_ = false;
    search(record, 3);
  }

  void search(const JsonReader& place, int depth) {
    for (const char* key : kIdKeys) {
      if (place.has(key) && !place.at(key).value().is_null()) {
        found_ = true;
        add_value(place.at(key));
      }
    }
    for (const char* key : {"meta_info", "sgl_ext"}) {
      if (depth > 0 && place.has(key)) {
        search(place.at(key), depth - 1);
      }
    }
    for (const char* key : {"outputs", "choices"}) {
      for (std::size_t i = 0; depth > 0 && place.has(key) && i < place.at(key).size(); ++i) {
        search(place.at(key).at(i), depth - 1);
      }
    }
  }

  void add_value(const JsonReader& value) {
    if (value.value().is_string()) {
      add_flat(value, decode_base64(value));
      return;
    }
    if (value.size() == 0) {
      return;
    }
    const Json& first = value.value()[0];
    if (first.is_array() && !first.empty() && first[0].is_array()) {
      for (std::size_t t = 0; t < value.size(); ++t) {
        add_token(value.at(t));
      }
    } else {
      add_token(value);
    }
  }

  /// Numbers [tokens, layers, top_k] without their shape.
  void add_flat(const JsonReader& value, const std::vector<std::int64_t>& numbers) {
    COTERIE_REQUIRE(top_k_ > 0 && !ids_.empty(), value.place(),
                    ": base64 does not say its shape: give the number of layers and top_k");
    const std::size_t token_size = ids_.size() * top_k_;
    COTERIE_REQUIRE(numbers.size() % token_size == 0, value.place(), ": ", numbers.size(),
                    " ids are no whole tokens of ", ids_.size(), " layers x ", top_k_);
    for (std::size_t at = 0; at < numbers.size(); at += token_size) {
      for (std::size_t l = 0; l < ids_.size(); ++l) {
        add_row(l, std::span(numbers).subspan(at + l * top_k_, top_k_),
                join_message(value.place(), ": token ", at / token_size, ": layer ", l));
      }
      end_token();
    }
  }

  void add_token(const JsonReader& layers) {
    if (ids_.empty()) {
      ids_.resize(layers.size());
    }
    if (layers.size() != ids_.size() || layers.size() == 0) {
      layers.refuse(join_message("a list of ", ids_.size(), " layers"));
    }
    for (std::size_t l = 0; l < ids_.size(); ++l) {
      const JsonReader row = layers.at(l);
      top_k_ = top_k_ == 0 ? row.size() : top_k_;
      if (row.size() != top_k_ || top_k_ == 0) {
        row.refuse(join_message("a list of ", top_k_, " expert ids"));
      }
      add_row(l,
              row.as_ints(std::numeric_limits<std::int64_t>::min(),
                          std::numeric_limits<std::int64_t>::max()),
              row.place());
    }
    end_token();
  }

  void add_row(std::size_t layer, std::span<const std::int64_t> row, const std::string& place) {
    const std::int64_t first = row[0];
    const bool all_same =
        std::all_of(row.begin(), row.end(), [&](std::int64_t id) { return id == first; });
    COTERIE_REQUIRE(row.size() == 1 || !all_same || first == -1, place, ": every id is ", first,
                    ", which looks like the filling of a row that was never recorded; "
                    "remove such tokens or mark them with -1");
    for (const std::int64_t id : row) {
      COTERIE_REQUIRE(id >= -1 && id < limit_, place, ": expert id ", id, " is not in [0, ", limit_,
                      ")");
      ids_[layer].push_back(id < 0 ? kNoExpert : static_cast<std::uint16_t>(id));
      highest_ = std::max(highest_, static_cast<std::int32_t>(id));
    }
    check_rows(std::span<const std::uint16_t>(ids_[layer]).last(row.size()),
               static_cast<std::int32_t>(row.size()), limit_, place + ": ");
  }

  void end_token() { tokens_.push_back({sequence_, position_++, domain_, 0}); }

  const ImportOptions& options_;
  std::int32_t limit_;
  std::size_t top_k_;
  std::vector<std::vector<std::uint16_t>> ids_;  ///< [layers][tokens x top_k]
  std::vector<TokenInfo> tokens_;
  std::map<std::string, std::size_t> domains_;
  std::uint32_t sequence_ = 0;
  std::uint32_t position_ = 0;
  std::uint16_t domain_ = 0;
  std::int32_t highest_ = -1;
  bool found_ = false;
};

}  // namespace

ImportedPart import_engine_jsonl(const std::filesystem::path& path, std::string_view text,
                                 const ImportOptions& options) {
  LineReader lines(text, path.string());
  EngineRecords records(options);
  while (const auto line = lines.next()) {
    const Json json = parse_json(*line, lines.place());
    COTERIE_REQUIRE(json.is_object(), lines.place(), ": expected an object");
    records.add(JsonReader(json, lines.place()));
  }
  return records.finish(path);
}

}  // namespace coterie::routing
