// SPDX-License-Identifier: Apache-2.0
#include "tests/run/layer/toy_layer.hpp"

#include <cmath>
#include <cstring>

namespace coterie::layer {

using kernels::DType;

Values::Values(Random& random, std::int64_t rows, std::int64_t columns, double scale, DType type)
    : rows_(rows), columns_(columns), type_(type) {
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const auto value = static_cast<float>(random.normal() * scale);
    if (type == DType::kFloat32) {
      floats_.push_back(value);
    } else {
      halves_.push_back(kernels::to_bfloat16(value));
    }
  }
}

kernels::ConstMatrixView Values::view() const {
  return view(0, rows_);
}

kernels::ConstMatrixView Values::view(std::int64_t first, std::int64_t count) const {
  const void* data = type_ == DType::kFloat32
                         ? static_cast<const void*>(floats_.data() + first * columns_)
                         : static_cast<const void*>(halves_.data() + first * columns_);
  return {data, count, columns_, columns_, type_};
}

ToyLayer::ToyLayer(std::uint64_t seed, std::int32_t num_experts, std::int32_t top_k, DType type,
                   std::int64_t hidden, std::int64_t intermediate) {
  Random random(seed, 23);
  options.name = "layer 3";
  options.hidden = hidden;
  options.intermediate = intermediate;
  options.num_experts = num_experts;
  options.top_k = top_k;
  options.exchange.poison_buffers = true;
  const double in_scale = 1.0 / std::sqrt(static_cast<double>(hidden));
  const double out_scale = 1.0 / std::sqrt(static_cast<double>(intermediate));
  router = Values(random, num_experts, hidden, in_scale, type);
  for (std::int32_t expert = 0; expert < num_experts; ++expert) {
    gate_up.emplace_back(random, 2 * intermediate, hidden, in_scale, type);
    down.emplace_back(random, hidden, intermediate, out_scale, type);
  }
}

MoeWeights ToyLayer::weights() const {
  MoeWeights views{router.view(), {}, {}};
  for (std::size_t expert = 0; expert < gate_up.size(); ++expert) {
    views.gate_up.push_back(gate_up[expert].view());
    views.down.push_back(down[expert].view());
  }
  return views;
}

MoeWeights ToyLayer::weights(const std::vector<std::int32_t>& experts) const {
  MoeWeights views{router.view(), {}, {}};
  views.gate_up.resize(gate_up.size());
  views.down.resize(down.size());
  for (const std::int32_t expert : experts) {
    const auto e = static_cast<std::size_t>(expert);
    views.gate_up[e] = gate_up[e].view();
    views.down[e] = down[e].view();
  }
  return views;
}

std::vector<std::byte> forward(MoeLayer& layer, const kernels::ConstMatrixView& x,
                               RoutingRecord* record) {
  // NaN everywhere: a row that nobody writes shows.
  std::vector<std::byte> y(static_cast<std::size_t>(x.rows * x.columns * kernels::size_of(x.type)),
                           std::byte{0xFF});
  layer.forward(x, {y.data(), x.rows, x.columns, x.columns, x.type}, record);
  return y;
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}

}  // namespace coterie::layer
