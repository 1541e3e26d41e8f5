// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/rotary.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// The dimension that turns `rotations` times over the original context.
double yarn_dimension(double rotations, double width, double theta, double positions) {
  return width * std::log(positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

/// Share of the frequency that is kept as it was (the rest is divided by `factor`), for pair i.
float yarn_kept(const Yarn& yarn, std::int64_t i, double width, double theta) {
  const auto positions = static_cast<double>(yarn.original_positions);
  double low = yarn_dimension(yarn.beta_fast, width, theta, positions);
  double high = yarn_dimension(yarn.beta_slow, width, theta, positions);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) {
    high += 0.001;
  }
  const float ramp =
      (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
  return 1.0F - std::clamp(ramp, 0.0F, 1.0F);
}

double table_factor(const ModelConfig& config) {
  if (!config.yarn) {
    return 1;
  }
  const Yarn& yarn = *config.yarn;
  if (yarn.attention_factor) {
    return *yarn.attention_factor;
  }
  if (yarn.mscale != 0 && yarn.mscale_all_dim != 0) {
    return yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim);
  }
  return yarn_mscale(yarn.factor, 1);
}

/// One head of one token: (a, b) of each pair turned by the pair's angle.
void rotate_head(float* x, const float* cosines, const float* sines, std::int64_t half,
                 bool interleaved) {
  for (std::int64_t i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float turned_a = a * cosines[i] - b * sines[i];
    b = b * cosines[i] + a * sines[i];
    a = turned_a;
  }
}

}  // namespace

std::vector<float> rotary_frequencies(const ModelConfig& config) {
  const std::int64_t width = config.rotary_width();
  std::vector<float> frequencies(static_cast<std::size_t>(width / 2));
  for (std::int64_t i = 0; i < width / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(width);
    const float power = std::pow(static_cast<float>(config.rope_theta), exponent);
    float frequency = 1.0F / power;
    if (config.yarn) {
      const float kept = yarn_kept(*config.yarn, i, static_cast<double>(width), config.rope_theta);
      const float stretched = 1.0F / (static_cast<float>(config.yarn->factor) * power);
      frequency = stretched * (1.0F - kept) + frequency * kept;
    }
    frequencies[static_cast<std::size_t>(i)] = frequency;
  }
  return frequencies;
}

RotaryTable make_rotary_table(const ModelConfig& config, std::int64_t num_positions) {
  const auto d = static_cast<double>(config.head_dim);
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, at::kFloat) / d;
  const at::Tensor frequencies = 1.0 / at::pow(config.rope_theta, exponents);
  const at::Tensor angles =
      at::arange(num_positions, at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  const at::Tensor both = at::cat({angles, angles}, 1);
  return {both.cos(), both.sin()};
}

RotaryTable make_decoder_rotary_table(const ModelConfig& config, std::int64_t num_positions) {
  const std::vector<float> frequencies = rotary_frequencies(config);
  const auto half = std::ssize(frequencies);
  const auto factor = static_cast<float>(table_factor(config));
  RotaryTable table{at::empty({num_positions, 2 * half}, at::kFloat),
                    at::empty({num_positions, 2 * half}, at::kFloat)};
  float* cosines = table.cosines.mutable_data_ptr<float>();
  float* sines = table.sines.mutable_data_ptr<float>();
  for (std::int64_t p = 0; p < num_positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(p) * frequencies[static_cast<std::size_t>(i)];
      const std::int64_t at = p * 2 * half + i;
      cosines[at] = cosines[at + half] = std::cos(angle) * factor;
      sines[at] = sines[at + half] = std::sin(angle) * factor;
    }
  }
  return table;
}

double rotary_score_factor(const ModelConfig& config) {
  if (!config.yarn || !config.latent || config.yarn->mscale_all_dim == 0) {
    return 1;
  }
  const double mscale = yarn_mscale(config.yarn->factor, config.yarn->mscale_all_dim);
  return mscale * mscale;
}

void rotate_rows(const at::Tensor& x, const RotaryTable& table, std::int64_t first,
                 bool interleaved) {
  const std::int64_t width = table.cosines.size(1);
  COTERIE_CHECK(
      x.stride(2) == 1 && x.size(2) >= width && first + x.size(0) <= table.cosines.size(0),
      "rows that the rotary table does not cover");
  const float* cosines = table.cosines.const_data_ptr<float>();
  const float* sines = table.sines.const_data_ptr<float>();
  float* data = x.mutable_data_ptr<float>();
  for (std::int64_t t = 0; t < x.size(0); ++t) {
    for (std::int64_t head = 0; head < x.size(1); ++head) {
      rotate_head(data + t * x.stride(0) + head * x.stride(1), cosines + (first + t) * width,
                  sines + (first + t) * width, width / 2, interleaved);
    }
  }
}

}  // namespace coterie::models
