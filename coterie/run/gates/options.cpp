// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/gates/options.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

namespace coterie::gates {
namespace {

// The names of an enumeration, in the order of its values.
constexpr std::array kGateKinds = {"topk_softmax",  "gshard",   "switch",
                                   "sigmoid",       "deepseek", "xmoe",
                                   "expert_choice", "softmoe",  "custom"};
constexpr std::array kSoftmaxOver = {"all_experts", "selected"};
constexpr std::array kScoreFunctions = {"sigmoid", "softmax"};
constexpr std::array kGroupScores = {"top2_sum", "max"};
constexpr std::array kRouterTypes = {"float32", "float64"};
constexpr std::array kBalanceScopes = {"sequence", "batch"};
constexpr std::array kOrderKinds = {"index", "einsum", "slots"};
constexpr std::array kCapacityScopes = {"sequence", "rank"};
constexpr std::array kCapacityKeeps = {"position", "score"};
constexpr std::array kCapacityRoundings = {"up", "down"};

/// Writes fields as members.
class Writer {
 public:
  void operator()(const char* key, const auto& value) { json_[key] = value; }
  template <typename Enum, std::size_t N>
  void operator()(const char* key, const Enum& value, const std::array<const char*, N>& names) {
    json_[key] = names.at(static_cast<std::size_t>(value));
  }
  template <typename Part>
  void part(const char* key, const Part& value) {
    Writer inner;
    visit(inner, value);
    json_[key] = inner.json_;
  }
  [[nodiscard]] Json json() const { return json_; }

 private:
  Json json_ = Json::object();
};

/// Reads the members that are there.
class Reader {
 public:
  explicit Reader(const JsonReader& json) : json_(json) {
    if (!json.value().is_object()) {
      json.refuse("an object");
    }
  }
  template <typename T>
  void operator()(const char* key, T& value) {
    if (!take(key)) {
      return;
    }
    const JsonReader member = json_.at(key);
    if constexpr (std::is_same_v<T, bool>) {
      value = member.as_bool();
    } else if constexpr (std::is_same_v<T, double>) {
      value = member.as_double();
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = member.as_string();
    } else {
      constexpr auto kHigh = std::numeric_limits<T>::max();
      constexpr bool kFits = std::in_range<std::int64_t>(kHigh);
      value = static_cast<T>(member.as_int(
          std::is_signed_v<T> ? static_cast<std::int64_t>(std::numeric_limits<T>::min()) : 0,
          kFits ? static_cast<std::int64_t>(kHigh) : std::numeric_limits<std::int64_t>::max()));
    }
  }
  template <typename Enum, std::size_t N>
  void operator()(const char* key, Enum& value, const std::array<const char*, N>& names) {
    if (!take(key)) {
      return;
    }
    const JsonReader member = json_.at(key);
    const std::string found = member.as_string();
    std::string known;
    for (std::size_t i = 0; i < N; ++i) {
      if (found == names[i]) {
        value = static_cast<Enum>(i);
        return;
      }
      known += std::string(i == 0 ? "" : ", ") + names[i];
    }
    member.refuse("one of " + known);
  }
  template <typename Part>
  void part(const char* key, Part& value) {
    if (take(key)) {
      Reader inner(json_.at(key));
      visit(inner, value);
      inner.refuse_others();
    }
  }
  void refuse_others() const {
    for (const auto& [key, value] : json_.value().items()) {
      if (std::find(seen_.begin(), seen_.end(), key) == seen_.end()) {
        json_.at(key).refuse("no member of this name");
      }
    }
  }

 private:
  bool take(const char* key) {
    seen_.emplace_back(key);
    return json_.has(key);
  }

  JsonReader json_;
  std::vector<std::string> seen_;
};

// One list of fields a struct, for both directions. `Options` is const when writing.
template <typename Visitor, typename Options>
requires std::is_same_v<std::remove_const_t<Options>, BalanceOptions>
void visit(Visitor& field, Options& options) {
  field("load_balance", options.load_balance);
  field("z_loss", options.z_loss);
  field("scope", options.scope, kBalanceScopes);
}

template <typename Visitor, typename Options>
requires std::is_same_v<std::remove_const_t<Options>, CapacityOptions>
void visit(Visitor& field, Options& options) {
  field("factor", options.factor);
  field("minimum", options.minimum);
  field("rounding", options.rounding, kCapacityRoundings);
  field("scope", options.scope, kCapacityScopes);
  field("keep", options.keep, kCapacityKeeps);
}

template <typename Visitor, typename Options>
requires std::is_same_v<std::remove_const_t<Options>, GateOptions>
void visit(Visitor& field, Options& options) {
  field("kind", options.kind, kGateKinds);
  field("name", options.name);
  field("hidden", options.hidden);
  field("num_experts", options.num_experts);
  field("top_k", options.top_k);
  field("type", options.type, kRouterTypes);
  field("softmax_over", options.softmax_over, kSoftmaxOver);
  field("renormalise", options.renormalise);
  field("score", options.score, kScoreFunctions);
  field("selection_bias", options.selection_bias);
  field("num_groups", options.num_groups);
  field("num_groups_kept", options.num_groups_kept);
  field("group_score", options.group_score, kGroupScores);
  field("scaling", options.scaling);
  field("bias_update_rate", options.bias_update_rate);
  field("noise", options.noise);
  field("jitter", options.jitter);
  field("projection", options.projection);
  field("temperature", options.temperature);
  field("capacity_factor", options.capacity_factor);
  field("slots_per_expert", options.slots_per_expert);
  field("normalise", options.normalise);
  field.part("balance", options.balance);
  field("noise_stream", options.noise_stream);
  field("initializer_range", options.initializer_range);
  field("initializer_seed", options.initializer_seed);
}

template <typename Visitor, typename Options>
requires std::is_same_v<std::remove_const_t<Options>, OrderOptions>
void visit(Visitor& field, Options& options) {
  field("kind", options.kind, kOrderKinds);
  field("name", options.name);
  field.part("capacity", options.capacity);
}

template <typename Options>
Json write(const Options& options) {
  Writer writer;
  visit(writer, options);
  return writer.json();
}

template <typename Options>
Options read(const JsonReader& json) {
  Options options;
  Reader reader(json);
  visit(reader, options);
  reader.refuse_others();
  return options;
}

}  // namespace

const char* name_of(GateKind kind) noexcept {
  return kGateKinds.at(static_cast<std::size_t>(kind));
}

const char* name_of(OrderKind kind) noexcept {
  return kOrderKinds.at(static_cast<std::size_t>(kind));
}

Json to_json(const GateOptions& options) {
  return write(options);
}

Json to_json(const OrderOptions& options) {
  return write(options);
}

GateOptions gate_options_from_json(const JsonReader& json) {
  return read<GateOptions>(json);
}

OrderOptions order_options_from_json(const JsonReader& json) {
  return read<OrderOptions>(json);
}

std::ostream& operator<<(std::ostream& out, const GateOptions& options) {
  return out << to_json(options).dump();
}

std::ostream& operator<<(std::ostream& out, const OrderOptions& options) {
  return out << to_json(options).dump();
}

}  // namespace coterie::gates
