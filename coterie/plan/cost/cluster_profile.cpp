// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/cluster_profile.hpp"

#include <cmath>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/plan/cost/read_json.hpp"

namespace coterie::cost {
namespace {

constexpr const char* kFormat = "coterie-cluster-profile";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMaxNodes = 1 << 20;
constexpr double kLargestTime = 1e6;

Json to_json(const Engine& engine) {
  return {{"name", engine.name},
          {"exchange", cost::to_json(engine.exchange)},
          {"local_exchange", cost::to_json(engine.local_exchange)},
          {"all_gather", cost::to_json(engine.all_gather)},
          {"reduce_scatter", cost::to_json(engine.reduce_scatter)},
          {"all_reduce", cost::to_json(engine.all_reduce)},
          {"contention", cost::to_json(engine.contention)}};
}

Engine engine_from(const JsonReader& reader) {
  check_keys(reader, {"name", "exchange", "local_exchange", "all_gather", "reduce_scatter",
                      "all_reduce", "contention"});
  Engine engine;
  engine.name = reader.at("name").as_string();
  if (engine.name.empty()) {
    reader.at("name").refuse("a name");
  }
  engine.exchange = cost_model_from(reader.at("exchange"));
  engine.local_exchange = cost_model_from(reader.at("local_exchange"));
  engine.all_gather = cost_model_from(reader.at("all_gather"));
  engine.reduce_scatter = cost_model_from(reader.at("reduce_scatter"));
  engine.all_reduce = cost_model_from(reader.at("all_reduce"));
  engine.contention = contention_from(reader.at("contention"));
  return engine;
}

ProfileCheck check_from(const JsonReader& reader) {
  check_keys(reader, {"what", "predicted_s", "measured_s"});
  return {reader.at("what").as_string(),
          check_prediction(read_number(reader.at("predicted_s"), 1e-12, kLargestTime),
                           read_number(reader.at("measured_s"), 1e-12, kLargestTime))};
}

void check_engines(const ClusterProfile& profile, const std::string& where) {
  COTERIE_REQUIRE(!profile.engines.empty(), where, ": no engine");
  for (std::size_t i = 0; i < profile.engines.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      COTERIE_REQUIRE(profile.engines[i].name != profile.engines[j].name, where,
                      ": two engines are called \"", profile.engines[i].name, "\"");
    }
  }
}

}  // namespace

const Engine& ClusterProfile::engine(std::string_view engine_name) const {
  COTERIE_REQUIRE(!engines.empty(), "cluster profile: no engine");
  if (engine_name.empty()) {
    return engines.front();
  }
  std::string names;
  for (const Engine& engine : engines) {
    if (engine.name == engine_name) {
      return engine;
    }
    names += (names.empty() ? "" : ", ") + engine.name;
  }
  fail(ErrorCode::kBadInput, "cluster profile \"", name, "\" has no engine \"", engine_name,
       "\"; it has ", names);
}

Json to_json(const ClusterProfile& profile) {
  Json engines = Json::array();
  for (const Engine& engine : profile.engines) {
    engines.push_back(to_json(engine));
  }
  Json checks = Json::array();
  for (const ProfileCheck& check : profile.checks) {
    checks.push_back({{"what", check.what},
                      {"predicted_s", check.check.predicted_s},
                      {"measured_s", check.check.measured_s}});
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"name", profile.name},
          {"source", profile.source},
          {"num_nodes", profile.num_nodes},
          {"devices_per_node", profile.devices_per_node},
          {"products", to_json(profile.products)},
          {"input_gradients", profile.input_gradients},
          {"weight_gradients", profile.weight_gradients},
          {"attention", to_json(profile.attention)},
          {"backward_attention", profile.backward_attention},
          {"engines", std::move(engines)},
          {"checks", std::move(checks)}};
}

std::string format_profile(const ClusterProfile& profile) {
  return format_json(to_json(profile));
}

void write_profile(const std::filesystem::path& path, const ClusterProfile& profile) {
  const Json json = to_json(profile);
  profile_from(json, path.string());
  write_text_file(path, format_json(json));
}

ClusterProfile profile_from(const Json& json, const std::string& source) {
  const JsonReader reader(json, source);
  check_keys(reader, {"format", "version", "name", "source", "num_nodes", "devices_per_node",
                      "products", "input_gradients", "weight_gradients", "attention",
                      "backward_attention", "engines", "checks"});
  COTERIE_REQUIRE(reader.at("format").as_string() == kFormat, source,
                  ": this is no cluster profile: /format is \"", reader.at("format").as_string(),
                  "\" instead of \"", kFormat, "\"");
  const std::int64_t version = reader.at("version").as_int();
  COTERIE_REQUIRE(version == kVersion, source, ": /version: ", version,
                  " is not known; this build reads version ", kVersion);
  ClusterProfile profile;
  profile.name = reader.at("name").as_string();
  profile.source = reader.at("source").as_string();
  profile.num_nodes = static_cast<std::int32_t>(reader.at("num_nodes").as_int(1, kMaxNodes));
  profile.devices_per_node =
      static_cast<std::int32_t>(reader.at("devices_per_node").as_int(1, 1024));
  profile.products = cost_model_from(reader.at("products"));
  for (const auto& [key, factor] : {std::pair{"input_gradients", &profile.input_gradients},
                                    std::pair{"weight_gradients", &profile.weight_gradients}}) {
    if (reader.has(key)) {
      *factor = read_number(reader.at(key), 0.01, 100);
    }
  }
  profile.attention = cost_model_from(reader.at("attention"));
  profile.backward_attention = read_number(reader.at("backward_attention"), 0, 100);
  const JsonReader engines = reader.at("engines");
  for (std::size_t i = 0; i < engines.size(); ++i) {
    profile.engines.push_back(engine_from(engines.at(i)));
  }
  check_engines(profile, source);
  const JsonReader checks = reader.at("checks");
  for (std::size_t i = 0; i < checks.size(); ++i) {
    profile.checks.push_back(check_from(checks.at(i)));
  }
  return profile;
}

ClusterProfile read_profile(const std::filesystem::path& path) {
  return profile_from(read_json_file(path), path.string());
}

ClusterProfile with_nodes(const ClusterProfile& profile, std::int32_t num_nodes) {
  COTERIE_REQUIRE(num_nodes >= 1 && num_nodes <= kMaxNodes, "number of nodes ", num_nodes,
                  ": must be 1 to ", kMaxNodes);
  ClusterProfile resized = profile;
  resized.num_nodes = num_nodes;
  if (num_nodes == profile.num_nodes) {
    return resized;
  }
  COTERIE_REQUIRE(profile.num_nodes > 1 && num_nodes > 1, "cluster profile \"", profile.name,
                  "\": it has ", profile.num_nodes,
                  " node(s); links between nodes of a cluster of ", num_nodes,
                  " do not follow from it");
  const auto before = static_cast<double>(profile.num_nodes);
  const auto after = static_cast<double>(num_nodes);
  const double leaving = ((after - 1) / after) / ((before - 1) / before);
  const double rounds = std::log2(after) / std::log2(before);
  for (Engine& engine : resized.engines) {
    engine.exchange = engine.exchange.scaled(rounds, leaving);
    engine.all_reduce = engine.all_reduce.scaled((after - 1) / (before - 1), leaving);
  }
  return resized;
}

}  // namespace coterie::cost
