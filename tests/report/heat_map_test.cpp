// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/heat_map.hpp"

#include <gtest/gtest.h>

#include "coterie/report/chart.hpp"
#include "coterie/report/png.hpp"

namespace coterie::report {
namespace {

TEST(HeatMap, OrderFollowsDevicesAndCountsCopiesOnce) {
  placement::LayerPlacement placement;
  placement.num_experts = 4;
  placement.experts_of_device = {{1, 3}, {0, 3}, {2, 3}};
  const DeviceOrder order = device_order(placement);
  EXPECT_EQ(order.experts, (std::vector<std::int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(order.begins, (std::vector<std::size_t>{0, 2, 3, 4}));
}

TEST(HeatMap, ShareInside) {
  Matrix<std::uint64_t> pairs(4, 4);
  const auto meet = [&](std::size_t i, std::size_t j, std::uint64_t count) {
    pairs(i, j) = pairs(j, i) = count;
  };
  meet(0, 1, 3);
  meet(2, 3, 3);
  meet(0, 2, 2);
  pairs(0, 0) = 100;  // loads do not count
  const DeviceOrder order = device_order(placement::contiguous_placement(4, 2));
  EXPECT_DOUBLE_EQ(share_inside(pairs, order), 0.75);
  EXPECT_EQ(share_inside(Matrix<std::uint64_t>(4, 4), order), 0.0);
}

TEST(HeatMap, FullColourIgnoresOneHotPair) {
  Matrix<std::uint64_t> pairs(30, 30, 7);
  pairs(1, 0) = 1000000;
  EXPECT_EQ(full_colour_count(pairs), 7U);
  EXPECT_EQ(full_colour_count(Matrix<std::uint64_t>(5, 5)), 1U);
  EXPECT_EQ(full_colour_count(Matrix<std::uint64_t>(1, 1)), 1U);
}

TEST(HeatMap, SvgHasABlockADevice) {
  const std::string svg =
      heat_map_svg(Matrix<std::uint64_t>(6, 6, 2),
                   device_order(placement::contiguous_placement(6, 3)), 2, "a \"map\"");
  std::size_t blocks = 0;
  for (std::size_t at = svg.find("class=\"block\""); at != std::string::npos;
       at = svg.find("class=\"block\"", at + 1)) {
    ++blocks;
  }
  EXPECT_EQ(blocks, 3U);
  EXPECT_NE(svg.find("a &quot;map&quot;"), std::string::npos);
  EXPECT_NE(svg.find("data:image/png;base64,iVBORw0KGgo"), std::string::npos);
}

// The same picture as written byte by byte from the specification.
TEST(Png, OnePixel) {
  const std::string png = encode_png(Matrix<std::uint8_t>(1, 1), {{255, 0, 0, 128}});
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
  // CRC-32 of an empty IEND chunk is a constant of the format.
  EXPECT_EQ(png.substr(png.size() - 8), "IEND\xAE\x42\x60\x82");
  const std::string data("\0\0", 2);
  EXPECT_NE(png.find(std::string("\x78\x01\x01\x02\x00\xFD\xFF", 7) + data), std::string::npos);
}

TEST(Chart, PointsStayInside) {
  LayerChart chart{"t", "u", {"0", "1"}, {{"a<b", "s-1", {1.0, 1e9}}, {"c", "s-2", {0, 0}, true}}};
  const std::string svg = chart_svg(chart);
  EXPECT_NE(svg.find("a&lt;b, layer 0: 1.00"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  chart.series[0].values = {0, 0};
  EXPECT_EQ(chart_svg(chart).find("nan"), std::string::npos);
  EXPECT_NE(chart_legend(chart).find("dashed"), std::string::npos);
}

}  // namespace
}  // namespace coterie::report
