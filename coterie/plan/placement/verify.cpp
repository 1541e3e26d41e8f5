// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/placement/verify.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"

namespace coterie::placement {
namespace {

/// Everything said about one file starts with its name.
struct FileText {
  std::string name;
  Json json;

  template <typename... Parts>
  void demand(bool holds, const Parts&... parts) const {
    if (!holds) {
      fail(ErrorCode::kBadInput, name, ": ", parts...);
    }
  }
  [[nodiscard]] const Json& member(const char* key) const {
    demand(json.contains(key), "\"", key, "\" is missing");
    return json[key];
  }
  /// A list of whole numbers, each in [low, high].
  [[nodiscard]] std::vector<std::int64_t> numbers(const Json& list, const std::string& what,
                                                  std::int64_t low, std::int64_t high) const {
    demand(list.is_array(), what, " is no list");
    std::vector<std::int64_t> values;
    for (const Json& item : list) {
      demand(item.is_number_integer(), what, "[", values.size(), "] is ", item.dump(),
             ", no whole number");
      const auto value = item.get<std::int64_t>();
      demand(value >= low && value <= high, what, "[", values.size(), "] is ", value, ", not in [",
             low, ", ", high, "]");
      values.push_back(value);
    }
    return values;
  }
};

FileText read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    fail(ErrorCode::kIo, path.string(), ": cannot be read");
  }
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  FileText file{path.string(), Json::parse(text, nullptr, false)};
  file.demand(!file.json.is_discarded(), "is no JSON");
  file.demand(file.json.is_object(), "is no JSON object");
  return file;
}

constexpr std::int64_t kMost = 65534;

/// The laws of a layer: every expert somewhere, no device twice, no device empty.
void check_holders(const FileText& file, VerifiedLayer& layer, std::int32_t num_devices,
                   const std::string& what) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(num_devices));
  for (std::size_t e = 0; e < layer.holders.size(); ++e) {
    auto& holders = layer.holders[e];
    file.demand(!holders.empty(), what, ": expert ", e, " is on no device");
    std::sort(holders.begin(), holders.end());
    for (std::size_t i = 0; i < holders.size(); ++i) {
      file.demand(i == 0 || holders[i] != holders[i - 1], what, ": device ", holders[i],
                  " holds expert ", e, " twice");
      ++slots[static_cast<std::size_t>(holders[i])];
    }
  }
  layer.fewest_slots = *std::min_element(slots.begin(), slots.end());
  layer.most_slots = *std::max_element(slots.begin(), slots.end());
  file.demand(layer.fewest_slots > 0, what, ": device ",
              std::min_element(slots.begin(), slots.end()) - slots.begin(), " holds no expert");
}

/// Fills holders from a device-major list of slots and the first slot of each device. `ascending`:
/// our own files promise that the experts of a device ascend, foreign ones do not.
void read_slots(const FileText& file, VerifiedLayer& layer, const std::vector<std::int64_t>& slots,
                const std::vector<std::int64_t>& offsets, const std::string& what, bool ascending) {
  file.demand(offsets.front() == 0 && offsets.back() == static_cast<std::int64_t>(slots.size()),
              what, ": device offsets do not run from 0 to ", slots.size());
  const auto num_devices = static_cast<std::int32_t>(offsets.size()) - 1;
  layer.holders.resize(static_cast<std::size_t>(layer.num_experts));
  for (std::int32_t d = 0; d < num_devices; ++d) {
    const std::int64_t end = offsets[static_cast<std::size_t>(d) + 1];
    file.demand(offsets[static_cast<std::size_t>(d)] < end, what, ": device ", d, " has no slot");
    for (std::int64_t i = offsets[static_cast<std::size_t>(d)]; i < end; ++i) {
      const auto slot = static_cast<std::size_t>(i);
      file.demand(
          !ascending || i == offsets[static_cast<std::size_t>(d)] || slots[slot] > slots[slot - 1],
          what, ": device ", d, ": expert ", slots[slot], " stands after expert ",
          slots[slot - (slot > 0 ? 1 : 0)], ", experts of a device must ascend");
      layer.holders[static_cast<std::size_t>(slots[static_cast<std::size_t>(i)])].push_back(d);
    }
  }
  check_holders(file, layer, num_devices, what);
}

std::optional<VerifiedFigures> read_figures(const FileText& file, const Json& entry,
                                            const char* key, const std::string& what) {
  if (!entry.is_object() || !entry.contains(key)) {
    return std::nullopt;
  }
  const Json& stated = entry[key];
  const auto number = [&](const char* name) {
    file.demand(stated.is_object() && stated.contains(name) && stated[name].is_number(), what,
                ": figures lack a number \"", name, "\"");
    return stated[name].get<double>();
  };
  return VerifiedFigures{static_cast<std::uint64_t>(number("num_tokens")), number("replicas"),
                         number("bottleneck_replicas"), number("load_imbalance"),
                         number("receive_imbalance")};
}

void read_coterie(const FileText& file, VerifiedFile& result) {
  const Json& options = file.member("options");
  file.demand(options.is_object() && options.contains("num_devices"),
              "\"options\" lacks \"num_devices\"");
  result.num_devices = static_cast<std::int32_t>(
      file.numbers(Json::array({options["num_devices"]}), "num_devices", 1, kMost)[0]);
  const Json& algorithm = file.member("algorithm");
  if (algorithm == "coterie" && options.contains("load_cap") && options["load_cap"].is_number()) {
    result.load_cap = options["load_cap"].get<double>();
  }
  for (const auto& [key, text] : {std::pair{"model_fingerprint", &result.model_fingerprint},
                                  std::pair{"trace_fingerprint", &result.trace_fingerprint}}) {
    const Json value = file.json.value(key, Json(""));
    file.demand(value.is_string(), "\"", key, "\" is ", value.dump(), ", no text");
    *text = value.get<std::string>();
  }
  if (file.json.contains("fit_rows") && file.json["fit_rows"].is_string()) {
    result.fit_rows = file.json["fit_rows"].get<std::string>();
  }
  const auto num_experts =
      file.numbers(Json::array({file.member("num_experts")}), "num_experts", 1, kMost)[0];
  const auto layers =
      file.numbers(file.member("layers"), "layers", 0, std::numeric_limits<std::int32_t>::max());
  const Json& maps = file.member("physical_to_logical_map");
  const Json& offsets = file.member("device_slot_offsets");
  file.demand(!layers.empty(), "no layer is placed");
  file.demand(maps.is_array() && maps.size() == layers.size(),
              "physical_to_logical_map has not one list a layer");
  file.demand(offsets.is_array() && offsets.size() == layers.size(),
              "device_slot_offsets has not one list a layer");
  const Json prices = file.json.value("device_prices", Json::array());
  const Json figures = file.json.value("figures", Json::array());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string what = "layer " + std::to_string(layers[i]);
    file.demand(i == 0 || layers[i] > layers[i - 1], what, ": layers do not ascend");
    VerifiedLayer layer;
    layer.layer = static_cast<std::int32_t>(layers[i]);
    layer.num_experts = static_cast<std::int32_t>(num_experts);
    const auto slots = file.numbers(maps[i], what + ": slot", 0, num_experts - 1);
    const auto cuts = file.numbers(offsets[i], what + ": offset", 0, kMost * kMost);
    file.demand(cuts.size() == static_cast<std::size_t>(result.num_devices) + 1, what, ": ",
                cuts.size(), " offsets for ", result.num_devices, " devices");
    read_slots(file, layer, slots, cuts, what, true);
    layer.prices.resize(static_cast<std::size_t>(result.num_devices));
    if (i < prices.size() && !prices[i].empty()) {
      const auto values =
          file.numbers(prices[i], what + ": price", 0, std::numeric_limits<std::uint32_t>::max());
      file.demand(values.size() == layer.prices.size(), what, ": not one price a device");
      layer.prices.assign(values.begin(), values.end());
    }
    if (i < figures.size()) {
      layer.stated_fit = read_figures(file, figures[i], "fit", what);
      layer.stated_held_out = read_figures(file, figures[i], "held_out", what);
    }
    result.layers.push_back(std::move(layer));
  }
}

void read_sglang(const FileText& file, VerifiedFile& result) {
  const Json& maps = file.json["physical_to_logical_map"];
  file.demand(maps.is_array() && !maps.empty(), "physical_to_logical_map holds no layer");
  file.demand(result.num_devices > 0, "does not say how many devices there are: give --devices");
  for (const Json& map : maps) {
    const std::string what = "layer " + std::to_string(result.layers.size());
    VerifiedLayer layer;
    layer.layer = static_cast<std::int32_t>(result.layers.size());
    const auto slots = file.numbers(map, what + ": slot", 0, kMost);
    const auto count = static_cast<std::int64_t>(slots.size());
    file.demand(count > 0 && count % result.num_devices == 0, what, ": ", count,
                " slots do not divide among ", result.num_devices, " devices");
    layer.num_experts =
        static_cast<std::int32_t>(*std::max_element(slots.begin(), slots.end())) + 1;
    std::vector<std::int64_t> offsets;
    for (std::int64_t d = 0; d <= result.num_devices; ++d) {
      offsets.push_back(d * (count / result.num_devices));
    }
    read_slots(file, layer, slots, offsets, what, false);
    layer.prices.resize(static_cast<std::size_t>(result.num_devices));
    result.layers.push_back(std::move(layer));
  }
}

void read_vllm(const FileText& file, VerifiedFile& result) {
  Json maps = file.json["expert_to_ep_rank"];
  file.demand(maps.is_array() && !maps.empty(), "expert_to_ep_rank holds no expert");
  if (!maps[0].is_array()) {
    maps = Json::array({maps});
  }
  std::vector<std::vector<std::int64_t>> ranks;
  std::int64_t highest = 0;
  for (const Json& map : maps) {
    ranks.push_back(
        file.numbers(map, "expert_to_ep_rank of layer " + std::to_string(ranks.size()), 0, kMost));
    file.demand(!ranks.back().empty(), "layer ", ranks.size() - 1, " has no expert");
    highest = std::max(highest, *std::max_element(ranks.back().begin(), ranks.back().end()));
  }
  if (result.num_devices == 0) {
    result.num_devices = static_cast<std::int32_t>(highest) + 1;
  }
  file.demand(highest < result.num_devices, "rank ", highest, " is not below the ",
              result.num_devices, " devices");
  for (const auto& rank_of : ranks) {
    VerifiedLayer layer;
    layer.layer = static_cast<std::int32_t>(result.layers.size());
    layer.num_experts = static_cast<std::int32_t>(rank_of.size());
    for (const std::int64_t rank : rank_of) {
      layer.holders.push_back({static_cast<std::int32_t>(rank)});
    }
    check_holders(file, layer, result.num_devices, "layer " + std::to_string(layer.layer));
    layer.prices.resize(static_cast<std::size_t>(result.num_devices));
    result.layers.push_back(std::move(layer));
  }
}

/// The 64-bit mixing function of the serving rule (docs/file_formats.md).
std::uint64_t scramble(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ULL;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

using Holders = std::vector<const std::vector<std::int32_t>*>;

/// Device of each expert of one token: the fewest different devices, then the lowest cost.
std::vector<std::int32_t> cheapest_combination(const Holders& holders,
                                               const std::vector<std::uint32_t>& prices,
                                               std::uint64_t key) {
  // Every combination of copies, like the digits of a number.
  std::vector<std::size_t> digit(holders.size(), 0);
  std::pair<std::size_t, std::uint64_t> best{holders.size() + 1, 0};
  std::vector<std::int32_t> best_devices;
  for (bool more = true; more;) {
    std::vector<std::int32_t> devices;
    std::uint64_t cost = 0;
    for (std::size_t i = 0; i < holders.size(); ++i) {
      const std::int32_t device = (*holders[i])[digit[i]];
      devices.push_back(device);
      if (holders[i]->size() > 1) {
        cost += prices[static_cast<std::size_t>(device)] +
                scramble(key + (static_cast<std::uint64_t>(device) + 1) * 0x9E3779B97F4A7C15ULL) %
                    65536;
      }
    }
    const std::size_t used = std::set<std::int32_t>(devices.begin(), devices.end()).size();
    if (std::pair{used, cost} < best || best_devices.empty()) {
      best = {used, cost};
      best_devices = devices;
    }
    more = false;
    for (std::size_t i = 0; i < digit.size() && !more; ++i) {
      digit[i] = (digit[i] + 1) % holders[i]->size();
      more = digit[i] != 0;
    }
  }
  return best_devices;
}

}  // namespace

VerifiedFile verify_placement_file(const std::filesystem::path& path, std::int32_t num_devices) {
  const FileText file = read_file(path);
  VerifiedFile result;
  result.num_devices = num_devices;
  if (file.json.contains("format")) {
    file.demand(file.json["format"] == "coterie-placement",
                "is a file of another format: ", file.json["format"].dump());
    file.demand(file.json.contains("version") && file.json["version"] == 1,
                "is of a version that is not known here");
    result.kind = "coterie";
    read_coterie(file, result);
    file.demand(num_devices == 0 || num_devices == result.num_devices, "is for ",
                result.num_devices, " devices, not ", num_devices);
  } else if (file.json.contains("physical_to_logical_map")) {
    result.kind = "sglang";
    read_sglang(file, result);
  } else if (file.json.contains("expert_to_ep_rank")) {
    result.kind = "vllm";
    read_vllm(file, result);
  } else {
    file.demand(false, "holds neither physical_to_logical_map nor expert_to_ep_rank");
  }
  return result;
}

BruteForceCount::BruteForceCount(const VerifiedLayer& layer, std::int32_t num_devices)
    : layer_(layer),
      rows_(static_cast<std::size_t>(num_devices)),
      picks_(static_cast<std::size_t>(num_devices)) {}

void BruteForceCount::add(std::span<const std::uint16_t> experts, std::uint64_t num_tokens) {
  Holders holders;
  std::uint64_t key = 0;
  for (const std::uint16_t expert : experts) {
    if (expert == 0xFFFF) {
      continue;
    }
    if (expert >= layer_.num_experts) {
      fail(ErrorCode::kBadInput, "layer ", layer_.layer, ": a token chose expert ", expert,
           ", but the placement has ", layer_.num_experts, " experts");
    }
    holders.push_back(&layer_.holders[expert]);
    key += scramble(std::uint64_t{expert} + 1);
  }
  if (holders.empty()) {
    return;
  }
  const auto best_devices = cheapest_combination(holders, layer_.prices, key);
  num_tokens_ += num_tokens;
  for (const std::int32_t device : best_devices) {
    picks_[static_cast<std::size_t>(device)] += num_tokens;
  }
  for (const std::int32_t device :
       std::set<std::int32_t>(best_devices.begin(), best_devices.end())) {
    rows_[static_cast<std::size_t>(device)] += num_tokens;
  }
}

VerifiedFigures BruteForceCount::figures() const {
  VerifiedFigures figures;
  figures.num_tokens = num_tokens_;
  if (num_tokens_ == 0) {
    return figures;
  }
  const auto devices = static_cast<double>(rows_.size());
  double rows = 0;
  double picks = 0;
  double most_rows = 0;
  double most_picks = 0;
  for (std::size_t d = 0; d < rows_.size(); ++d) {
    rows += static_cast<double>(rows_[d]);
    picks += static_cast<double>(picks_[d]);
    most_rows = std::max(most_rows, static_cast<double>(rows_[d]));
    most_picks = std::max(most_picks, static_cast<double>(picks_[d]));
  }
  figures.replicas = rows / static_cast<double>(num_tokens_);
  figures.receive_imbalance = most_rows * devices / rows;
  figures.load_imbalance = most_picks * devices / picks;
  figures.bottleneck_replicas = most_rows * devices / static_cast<double>(num_tokens_);
  return figures;
}

}  // namespace coterie::placement
