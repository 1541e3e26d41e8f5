// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/gantt_chart.hpp"

#include <gtest/gtest.h>

#include <string>

namespace coterie::report {
namespace {

using schedule::Lane;
using schedule::Phase;
using schedule::TaskKind;

schedule::Timeline sample() {
  schedule::Timeline timeline;
  timeline.name = "two <chunks>";
  timeline.spans = {{TaskKind::kDispatch, Lane::kInter, Phase::kForward, 0, 2, 0, 0, 1e-3},
                    {TaskKind::kExperts, Lane::kCompute, Phase::kForward, 0, 2, 0, 1e-3, 4e-3},
                    {TaskKind::kDispatch, Lane::kInter, Phase::kForward, 1, 2, 0, 1e-3, 2e-3}};
  return timeline;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(GanttSvg, DrawsABoxATaskAndARowALane) {
  const std::string svg = gantt_svg(sample(), "ours <1>");
  EXPECT_EQ(count(svg, "<rect"), 3U);
  EXPECT_EQ(count(svg, ">inter<"), 1U);
  EXPECT_EQ(count(svg, ">intra<"), 0U);  // nothing ran there
  EXPECT_NE(svg.find(">E1<"), std::string::npos);
  EXPECT_NE(svg.find("ours &lt;1&gt;"), std::string::npos);
  EXPECT_NE(svg.find("E1 (experts, forward): 1.000 ms to 4.000 ms"), std::string::npos);
  EXPECT_EQ(count(svg, "<g>"), count(svg, "</g>"));
  EXPECT_EQ(svg, gantt_svg(sample(), "ours <1>"));
}

TEST(GanttSvg, AnEmptyTimelineIsAnEmptyChart) {
  const std::string svg = gantt_svg({}, "nothing");
  EXPECT_EQ(count(svg, "<rect"), 0U);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(TraceEvents, HoldsEveryTaskInMicroseconds) {
  const Json trace = trace_events(sample());
  const Json& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), 4U + 3U);  // names of a process and a thread for each of two lanes
  const Json& experts = events.at(5);
  EXPECT_EQ(experts.at("ph"), "X");
  EXPECT_EQ(experts.at("name"), "E1");
  EXPECT_DOUBLE_EQ(experts.at("ts").get<double>(), 1000);
  EXPECT_DOUBLE_EQ(experts.at("dur").get<double>(), 3000);
  EXPECT_EQ(experts.at("args").at("layer"), 2);
}

}  // namespace
}  // namespace coterie::report
