// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/cost/contention.hpp"

#include <algorithm>
#include <cmath>

#include "coterie/base/error.hpp"
#include "coterie/plan/cost/read_json.hpp"

namespace coterie::cost {
namespace {

constexpr double kLargestFactor = 1000;

}  // namespace

std::string_view name_of(Resource resource) {
  switch (resource) {
    case Resource::kInterNode: return "inter_node";
    case Resource::kIntraNode: return "intra_node";
    case Resource::kCompute: return "compute";
  }
  return "unknown";
}

bool Contention::is_free() const {
  for (const Resource victim : kResources) {
    for (const Resource other : kResources) {
      if (victim != other && factor(victim, other) != 1) {
        return false;
      }
    }
  }
  return true;
}

Contention uniform_contention(double links, double compute_links) {
  COTERIE_REQUIRE(links >= 0 && compute_links >= 0, "contention ", links, ", ", compute_links,
                  ": must not be below 0");
  Contention contention;
  contention.set(Resource::kInterNode, Resource::kIntraNode, 1 + links);
  contention.set(Resource::kIntraNode, Resource::kInterNode, 1 + links);
  for (const Resource link : {Resource::kInterNode, Resource::kIntraNode}) {
    contention.set(link, Resource::kCompute, 1 + compute_links);
    contention.set(Resource::kCompute, link, 1 + compute_links);
  }
  return contention;
}

PairSlowDown slow_down_of(const PairMeasurement& measurement) {
  const double times[] = {measurement.alone_a_s, measurement.alone_b_s, measurement.end_a_s,
                          measurement.end_b_s};
  for (const double time : times) {
    COTERIE_REQUIRE(std::isfinite(time) && time > 0, "pair measurement: time ", time,
                    " s is not positive");
  }
  const bool a_first = measurement.end_a_s <= measurement.end_b_s;
  const double first_end = a_first ? measurement.end_a_s : measurement.end_b_s;
  const double first_alone = a_first ? measurement.alone_a_s : measurement.alone_b_s;
  const double last_end = a_first ? measurement.end_b_s : measurement.end_a_s;
  const double last_alone = a_first ? measurement.alone_b_s : measurement.alone_a_s;
  const double first = first_end / first_alone;
  // Until first_end the other did first_end / factor of its work, then the rest at full speed.
  const double done = last_alone - (last_end - first_end);
  const double last = done > 0 ? first_end / done : kLargestFactor;
  PairSlowDown slow_down;
  slow_down.a = std::clamp(a_first ? first : last, 1.0, kLargestFactor);
  slow_down.b = std::clamp(a_first ? last : first, 1.0, kLargestFactor);
  return slow_down;
}

Json to_json(const Contention& contention) {
  Json json = Json::object();
  for (const Resource victim : kResources) {
    Json row = Json::object();
    for (const Resource other : kResources) {
      row[std::string(name_of(other))] = contention.factor(victim, other);
    }
    json[std::string(name_of(victim))] = std::move(row);
  }
  return json;
}

Contention contention_from(const JsonReader& reader) {
  check_keys(reader, {"inter_node", "intra_node", "compute"});
  Contention contention;
  for (const Resource victim : kResources) {
    const JsonReader row = reader.at(std::string(name_of(victim)));
    check_keys(row, {"inter_node", "intra_node", "compute"});
    for (const Resource other : kResources) {
      contention.set(victim, other,
                     read_number(row.at(std::string(name_of(other))), 1, kLargestFactor));
    }
  }
  return contention;
}

}  // namespace coterie::cost
