// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/schedule/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "coterie/base/error.hpp"

namespace coterie::schedule {
namespace {

constexpr const char* kFormat = "coterie-timeline";
constexpr std::int64_t kVersion = 1;

using Interval = std::pair<double, double>;

/// When the lane has a task: disjoint, ascending.
std::vector<Interval> busy_intervals(const Timeline& timeline, Lane lane, std::int32_t device) {
  std::vector<Interval> all;
  for (const Span& span : timeline.spans) {
    if (span.lane == lane && span.device == device && span.end_s > span.start_s) {
      all.emplace_back(span.start_s, span.end_s);
    }
  }
  std::ranges::sort(all);
  std::vector<Interval> merged;
  for (const Interval& interval : all) {
    if (!merged.empty() && interval.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, interval.second);
    } else {
      merged.push_back(interval);
    }
  }
  return merged;
}

auto key_of(const Span& span) {
  return std::tuple(span.device, span.layer, span.phase, span.kind, span.chunk);
}

}  // namespace

std::string label_of(const Span& span) {
  return std::string(short_name_of(span.kind)) + std::to_string(span.chunk + 1);
}

double Timeline::end_s() const {
  double end = 0;
  for (const Span& span : spans) {
    end = std::max(end, span.end_s);
  }
  return end;
}

double Timeline::busy_s(Lane lane, std::int32_t device) const {
  double sum = 0;
  for (const auto& [start, end] : busy_intervals(*this, lane, device)) {
    sum += end - start;
  }
  return sum;
}

double Timeline::both_busy_s(Lane a, Lane b, std::int32_t device) const {
  const auto first = busy_intervals(*this, a, device);
  const auto second = busy_intervals(*this, b, device);
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    const double start = std::max(first[i].first, second[j].first);
    const double end = std::min(first[i].second, second[j].second);
    sum += std::max(0.0, end - start);
    (first[i].second < second[j].second ? i : j)++;
  }
  return sum;
}

Timeline join(Timeline first, const Timeline& later) {
  const double shift = first.end_s();
  for (Span span : later.spans) {
    span.start_s += shift;
    span.end_s += shift;
    first.spans.push_back(span);
  }
  return first;
}

double mean_duration_error(const Timeline& predicted, const Timeline& measured) {
  std::map<decltype(key_of(Span{})), double> durations;
  for (const Span& span : predicted.spans) {
    durations[key_of(span)] = span.end_s - span.start_s;
  }
  double sum = 0;
  std::int64_t count = 0;
  for (const Span& span : measured.spans) {
    const auto found = durations.find(key_of(span));
    if (found != durations.end() && span.end_s > span.start_s) {
      sum += std::abs(found->second / (span.end_s - span.start_s) - 1);
      ++count;
    }
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

Json to_json(const Timeline& timeline) {
  Json spans = Json::array();
  for (const Span& span : timeline.spans) {
    spans.push_back({{"kind", name_of(span.kind)},
                     {"lane", name_of(span.lane)},
                     {"phase", name_of(span.phase)},
                     {"chunk", span.chunk},
                     {"layer", span.layer},
                     {"device", span.device},
                     {"start_s", span.start_s},
                     {"end_s", span.end_s}});
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"name", timeline.name},
          {"spans", std::move(spans)}};
}

Timeline timeline_from(const Json& json, const std::string& source) {
  constexpr std::int64_t kMax = 1 << 30;
  const JsonReader reader(json, source);
  COTERIE_REQUIRE(reader.at("format").as_string() == kFormat, source, ": this is no timeline");
  COTERIE_REQUIRE(reader.at("version").as_int() == kVersion, source,
                  ": /version is not known; this build reads version ", kVersion);
  Timeline timeline;
  timeline.name = reader.at("name").as_string();
  const JsonReader spans = reader.at("spans");
  const std::size_t count = spans.size();
  for (std::size_t i = 0; i < count; ++i) {
    const JsonReader entry = spans.at(i);
    Span span;
    span.kind = task_kind_of(entry.at("kind").as_string());
    span.lane = lane_of(entry.at("lane").as_string());
    const std::string phase = entry.at("phase").as_string();
    COTERIE_REQUIRE(phase == "forward" || phase == "backward", entry.place(), "/phase: \"", phase,
                    "\" is neither forward nor backward");
    span.phase = phase == "forward" ? Phase::kForward : Phase::kBackward;
    span.chunk = static_cast<std::int32_t>(entry.at("chunk").as_int(0, kMax));
    span.layer = static_cast<std::int32_t>(entry.at("layer").as_int(0, kMax));
    span.device = static_cast<std::int32_t>(entry.at("device").as_int(0, kMax));
    span.start_s = entry.at("start_s").as_double();
    span.end_s = entry.at("end_s").as_double();
    COTERIE_REQUIRE(span.end_s >= span.start_s, entry.place(), ": it ends before it starts");
    timeline.spans.push_back(span);
  }
  return timeline;
}

}  // namespace coterie::schedule
