// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/heat_map.hpp"

#include <algorithm>
#include <cmath>

#include "coterie/report/markup.hpp"
#include "coterie/report/png.hpp"
#include "coterie/report/text_table.hpp"

namespace coterie::report {
namespace {

/// From nothing over blue to a deep violet: readable on white and on near-black.
std::vector<Rgba> colour_ramp() {
  std::vector<Rgba> ramp(256);
  constexpr std::array<double, 3> kLow = {56, 132, 255};
  constexpr std::array<double, 3> kHigh = {214, 40, 110};
  for (std::size_t i = 0; i < ramp.size(); ++i) {
    const double t = static_cast<double>(i) / 255;
    for (std::size_t c = 0; c < 3; ++c) {
      ramp[i][c] = static_cast<std::uint8_t>(kLow[c] + (kHigh[c] - kLow[c]) * t * t);
    }
    ramp[i][3] = static_cast<std::uint8_t>(std::lround(255 * std::min(1.0, t * 1.15)));
  }
  return ramp;
}

}  // namespace

DeviceOrder device_order(const placement::LayerPlacement& placement) {
  DeviceOrder order;
  std::vector<bool> seen(static_cast<std::size_t>(placement.num_experts));
  for (const auto& device : placement.experts_of_device) {
    order.begins.push_back(order.experts.size());
    for (const std::int32_t expert : device) {
      if (!seen[static_cast<std::size_t>(expert)]) {
        seen[static_cast<std::size_t>(expert)] = true;
        order.experts.push_back(expert);
      }
    }
  }
  order.begins.push_back(order.experts.size());
  return order;
}

std::uint64_t full_colour_count(const Matrix<std::uint64_t>& pairs) {
  std::vector<std::uint64_t> counts;
  for (std::size_t i = 0; i < pairs.rows(); ++i) {
    counts.insert(counts.end(), pairs.row(i).begin(),
                  pairs.row(i).begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (counts.empty()) {
    return 1;
  }
  const auto at = counts.begin() + static_cast<std::ptrdiff_t>((counts.size() - 1) * 99 / 100);
  std::nth_element(counts.begin(), at, counts.end());
  return std::max<std::uint64_t>(1, *at);
}

std::string heat_map_svg(const Matrix<std::uint64_t>& pairs, const DeviceOrder& order,
                         std::uint64_t full_count, const std::string& label) {
  const std::size_t n = order.experts.size();
  Matrix<std::uint8_t> pixels(n, n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      const std::uint64_t count = pairs(static_cast<std::size_t>(order.experts[i]),
                                        static_cast<std::size_t>(order.experts[j]));
      const double share =
          std::min(1.0, static_cast<double>(count) / static_cast<double>(full_count));
      pixels(i, j) = i == j ? 0 : static_cast<std::uint8_t>(std::lround(255 * std::sqrt(share)));
    }
  }
  const std::string size = std::to_string(n);
  std::string svg = "<svg class=\"heat\" role=\"img\" viewBox=\"-0.5 -0.5 " +
                    std::to_string(n + 1) + " " + std::to_string(n + 1) + "\" aria-label=\"" +
                    escape(label) + "\"><rect class=\"ground\" width=\"" + size + "\" height=\"" +
                    size + "\"/><image width=\"" + size + "\" height=\"" + size +
                    "\" href=\"data:image/png;base64," + base64(encode_png(pixels, colour_ramp())) +
                    "\"/>";
  for (std::size_t d = 0; d + 1 < order.begins.size(); ++d) {
    const std::string begin = std::to_string(order.begins[d]);
    const std::string width = std::to_string(order.begins[d + 1] - order.begins[d]);
    svg += "<rect class=\"block\" x=\"" + begin + "\" y=\"" + begin + "\" width=\"" + width +
           "\" height=\"" + width + "\"><title>device " + std::to_string(d) + "</title></rect>";
  }
  return svg + "</svg>";
}

double share_inside(const Matrix<std::uint64_t>& pairs, const DeviceOrder& order) {
  double inside = 0;
  double all = 0;
  std::vector<std::size_t> device_of(pairs.rows());
  for (std::size_t d = 0; d + 1 < order.begins.size(); ++d) {
    for (std::size_t i = order.begins[d]; i < order.begins[d + 1]; ++i) {
      device_of[static_cast<std::size_t>(order.experts[i])] = d;
    }
  }
  for (std::size_t i = 0; i < pairs.rows(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto count = static_cast<double>(pairs(i, j));
      all += count;
      inside += device_of[i] == device_of[j] ? count : 0;
    }
  }
  return all == 0 ? 0 : inside / all;
}

}  // namespace coterie::report
