// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/plan/routing/import_part.hpp"

namespace coterie::routing {
namespace {

/// What the header of a .npy file says (format 1.0 to 3.0).
struct NpyHeader {
  std::string type;                  ///< such as "<f4"
  std::vector<std::uint64_t> shape;  ///< [tokens, n] or [layers, tokens, n]
  std::size_t data_offset = 0;
};

/// The text behind `'key':` in the dictionary.
std::string_view value_of(std::string_view dictionary, std::string_view key,
                          const std::string& where) {
  const std::size_t at = dictionary.find("'" + std::string(key) + "'");
  const std::size_t colon = dictionary.find(':', at);
  COTERIE_REQUIRE(at != std::string_view::npos && colon != std::string_view::npos, where,
                  ": byte 10: the .npy header has no '", key, "'");
  const std::string_view rest = dictionary.substr(colon + 1);
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

std::vector<std::uint64_t> parse_shape(std::string_view text, const std::string& where) {
  std::vector<std::uint64_t> shape;
  const std::size_t close = text.find(')');
  COTERIE_REQUIRE(text.starts_with('(') && close != std::string_view::npos, where,
                  ": byte 10: the .npy header has no readable shape");
  std::uint64_t number = 0;
  bool in_number = false;
  for (const char c : text.substr(1, close)) {
    if (c >= '0' && c <= '9') {
      COTERIE_REQUIRE(number < (std::uint64_t{1} << 40U), where, ": byte 10: shape too large");
      number = number * 10 + static_cast<std::uint64_t>(c - '0');
      in_number = true;
    } else if (in_number) {
      shape.push_back(number);
      number = 0;
      in_number = false;
    }
  }
  return shape;
}

NpyHeader parse_header(std::string_view text, const std::string& where) {
  const auto byte_at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  COTERIE_REQUIRE(text.size() >= 12, where, ": byte ", text.size(), ": truncated .npy header");
  const bool is_long = byte_at(6) >= 2;
  COTERIE_REQUIRE(byte_at(6) >= 1 && byte_at(6) <= 3, where, ": byte 6: .npy version ",
                  static_cast<int>(byte_at(6)));
  std::size_t length = byte_at(8) + (std::size_t{byte_at(9)} << 8U);
  if (is_long) {
    length += (std::size_t{byte_at(10)} << 16U) + (std::size_t{byte_at(11)} << 24U);
  }
  NpyHeader header;
  header.data_offset = (is_long ? 12 : 10) + length;
  COTERIE_REQUIRE(header.data_offset <= text.size(), where, ": byte 8: a header of ", length,
                  " bytes does not fit in a file of ", text.size(), " bytes: truncated");
  const std::string_view dictionary = text.substr(is_long ? 12 : 10, length);
  const std::string_view type = value_of(dictionary, "descr", where);
  COTERIE_REQUIRE(type.starts_with('\'') && type.find('\'', 1) != std::string_view::npos, where,
                  ": byte 10: the .npy header has no readable 'descr'");
  header.type = type.substr(1, type.find('\'', 1) - 1);
  COTERIE_REQUIRE(value_of(dictionary, "fortran_order", where).starts_with("False"), where,
                  ": byte 10: column-major arrays are not read; save a C-ordered copy");
  header.shape = parse_shape(value_of(dictionary, "shape", where), where);
  return header;
}

float float_of_half(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (bits >> 10U) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0) {  // zero and subnormal numbers
    const float value = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 0xFFU : exponent + 112;
  const std::uint32_t pattern = sign | (wide << 23U) | (fraction << 13U);
  float value = 0;
  std::memcpy(&value, &pattern, sizeof(value));
  return value;
}

template <typename Number>
Number number_at(std::string_view data, std::size_t index) {
  Number value;
  std::memcpy(&value, data.data() + index * sizeof(Number), sizeof(Number));
  return value;
}

/// Values of the array as wide numbers, whatever their type.
class NpyData {
 public:
  NpyData(std::string_view data, std::string type) : data_(data), type_(std::move(type)) {}

  [[nodiscard]] bool is_float() const { return type_ == "<f4" || type_ == "<f2"; }
  /// Bytes an item, 0 for a type that is not read.
  [[nodiscard]] std::size_t item_bytes() const {
    if (type_ == "|u1" || type_ == "|i1") {
      return 1;
    }
    const bool known = is_float() || type_ == "<i2" || type_ == "<u2" || type_ == "<i4" ||
                       type_ == "<u4" || type_ == "<i8";
    return known ? static_cast<std::size_t>(type_[2] - '0') : 0;
  }
  [[nodiscard]] float float_at(std::size_t i) const {
    return type_ == "<f4" ? number_at<float>(data_, i)
                          : float_of_half(number_at<std::uint16_t>(data_, i));
  }
  [[nodiscard]] std::int64_t int_at(std::size_t i) const {
    if (type_ == "|u1")
      return number_at<std::uint8_t>(data_, i);
    if (type_ == "|i1")
      return number_at<std::int8_t>(data_, i);
    if (type_ == "<i2")
      return number_at<std::int16_t>(data_, i);
    if (type_ == "<u2")
      return number_at<std::uint16_t>(data_, i);
    if (type_ == "<i4")
      return number_at<std::int32_t>(data_, i);
    if (type_ == "<u4")
      return number_at<std::uint32_t>(data_, i);
    return number_at<std::int64_t>(data_, i);
  }

 private:
  std::string_view data_;
  std::string type_;
};

void add_logits(LayerTrace& layer, const NpyData& data, std::size_t first, const std::string& at) {
  const auto num_experts = static_cast<std::size_t>(layer.num_experts);
  std::vector<float> logits(num_experts);
  for (std::size_t e = 0; e < num_experts; ++e) {
    logits[e] = data.float_at(first + e);
  }
  std::vector<std::uint16_t> ids(static_cast<std::size_t>(layer.top_k));
  std::vector<float> weights(ids.size());
  top_k_of_logits(logits, ids, weights, at);
  layer.ids.insert(layer.ids.end(), ids.begin(), ids.end());
  layer.weights.insert(layer.weights.end(), weights.begin(), weights.end());
}

std::int32_t add_ids(LayerTrace& layer, const NpyData& data, std::size_t first, std::int32_t limit,
                     const std::string& at) {
  std::int32_t highest = -1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(layer.top_k); ++i) {
    const std::int64_t id = data.int_at(first + i);
    COTERIE_REQUIRE(id >= -1 && id < limit, at, ": expert id ", id, " is not in [0, ", limit, ")");
    layer.ids.push_back(id < 0 ? kNoExpert : static_cast<std::uint16_t>(id));
    highest = std::max(highest, static_cast<std::int32_t>(id));
  }
  check_rows(std::span<const std::uint16_t>(layer.ids).last(static_cast<std::size_t>(layer.top_k)),
             layer.top_k, limit, at + ": ");
  return highest;
}

}  // namespace

void top_k_of_logits(std::span<const float> logits, std::span<std::uint16_t> ids,
                     std::span<float> weights, const std::string& where) {
  COTERIE_REQUIRE(ids.size() <= logits.size() && weights.size() == ids.size(), where, ": top_k is ",
                  ids.size(), " of ", logits.size(), " experts");
  for (std::size_t e = 0; e < logits.size(); ++e) {
    COTERIE_REQUIRE(!std::isnan(logits[e]) && logits[e] < std::numeric_limits<float>::infinity(),
                    where, ": the logit of expert ", e, " is ", logits[e]);
  }
  std::vector<std::uint16_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::partial_sort(order.begin(), order.begin() + std::ssize(ids), order.end(),
                    [&](std::uint16_t a, std::uint16_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  const float largest = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  COTERIE_REQUIRE(std::isfinite(largest), where, ": all logits are ", largest);
  float sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - largest);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = order[i];
    weights[i] = std::exp(logits[order[i]] - largest) / sum;
  }
}

ImportedPart import_npy(const std::filesystem::path& path, std::string_view text,
                        const ImportOptions& options) {
  const std::string name = path.string();
  const NpyHeader header = parse_header(text, name);
  const NpyData data(text.substr(header.data_offset), header.type);
  COTERIE_REQUIRE(data.item_bytes() > 0, name, ": byte 10: arrays of type ", header.type,
                  " are not read (logits: <f4, <f2; ids: whole numbers, little-endian)");
  const std::size_t rank = header.shape.size();
  COTERIE_REQUIRE(rank == 2 || rank == 3, name, ": byte 10: the array has ", rank,
                  " dimensions; expected [tokens, n] or [layers, tokens, n]");
  const std::uint64_t num_layers = rank == 3 ? header.shape[0] : 1;
  const std::uint64_t num_tokens = header.shape[rank - 2];
  const std::uint64_t width = header.shape[rank - 1];
  COTERIE_REQUIRE(num_layers > 0 && num_tokens > 0 && width > 0, name,
                  ": byte 10: the array is empty");
  COTERIE_REQUIRE(num_layers < 65536 && width < kNoExpert && num_tokens < (1ULL << 32U), name,
                  ": byte 10: an array of ", num_layers, " x ", num_tokens, " x ", width,
                  " is no routing");
  const std::uint64_t bytes = num_layers * num_tokens * width * data.item_bytes();
  COTERIE_REQUIRE(text.size() - header.data_offset == bytes, name, ": byte ", text.size(), ": ",
                  text.size() - header.data_offset, " bytes of data, expected ", bytes);
  COTERIE_REQUIRE(!data.is_float() || options.top_k > 0, name,
                  ": router logits do not say how many experts a token gets: give top_k");
  COTERIE_REQUIRE(
      !data.is_float() || options.num_experts == 0 || std::cmp_equal(options.num_experts, width),
      name, ": logits of ", width, " experts, not of ", options.num_experts);
  const std::int32_t limit = options.num_experts > 0 ? options.num_experts : kNoExpert - 1;

  ImportedPart part;
  part.name = name;
  part.header.num_experts =
      data.is_float() ? static_cast<std::int32_t>(width) : options.num_experts;
  part.header.top_k = data.is_float() ? options.top_k : static_cast<std::int32_t>(width);
  part.header.domains = {path.stem().string()};
  part.header.source = path.filename().string();
  part.header.has_weights = data.is_float();
  part.highest_id = part.header.num_experts - 1;
  for (std::size_t l = 0; l < num_layers; ++l) {
    LayerTrace layer;
    layer.layer = static_cast<std::int32_t>(l);
    layer.num_experts = part.header.num_experts;
    layer.top_k = part.header.top_k;
    for (std::size_t t = 0; t < num_tokens; ++t) {
      const std::size_t first = (l * num_tokens + t) * width;
      const std::string at = join_message(name, ": layer ", l, ": token ", t, ": byte ",
                                          header.data_offset + first * data.item_bytes());
      if (data.is_float()) {
        add_logits(layer, data, first, at);
      } else {
        part.highest_id = std::max(part.highest_id, add_ids(layer, data, first, limit, at));
      }
    }
    part.header.layers.push_back(layer.layer);
    part.layers.push_back(std::move(layer));
  }
  std::vector<TokenInfo> tokens(num_tokens);
  for (std::size_t t = 0; t < num_tokens; ++t) {
    tokens[t].position = static_cast<std::uint32_t>(t);
  }
  finish_token_rows(part, std::move(tokens), options);
  return part;
}

}  // namespace coterie::routing
