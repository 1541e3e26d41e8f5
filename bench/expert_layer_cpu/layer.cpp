// SPDX-License-Identifier: Apache-2.0
#include "bench/expert_layer_cpu/layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

namespace coterie::bench {
namespace {

using kernels::DType;

/// Fills with evenly distributed numbers in [-scale, scale); fast, for gigabytes.
void fill(std::vector<char>& bytes, DType type, float scale, std::uint32_t seed) {
  std::uint32_t state = seed * 2654435761U + 1;
  const auto next = [&] {
    state = state * 1664525U + 1013904223U;
    return scale * static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
  };
  if (type == DType::kFloat32) {
    auto* const values = reinterpret_cast<float*>(bytes.data());
    std::generate_n(values, bytes.size() / 4, next);
  } else {
    auto* const values = reinterpret_cast<std::uint16_t*>(bytes.data());
    std::generate_n(values, bytes.size() / 2, [&] { return kernels::to_bfloat16(next()); });
  }
}

}  // namespace

Layer::Layer(LayerShape shape, DType type) : shape_(std::move(shape)), type_(type) {
  weights_.resize(static_cast<std::size_t>(shape_.num_experts * expert_bytes()));
  fill(weights_, type, 0.03F, 1);
}

std::int64_t Layer::expert_bytes() const {
  return 3 * shape_.hidden_size * shape_.inner_size * size_of(type_);
}

const void* Layer::gate_up(std::int64_t expert) const {
  return weights_.data() + expert * expert_bytes();
}

const void* Layer::down(std::int64_t expert) const {
  return weights_.data() + expert * expert_bytes() + expert_bytes() / 3 * 2;
}

double Layer::flops() const {
  return 6.0 * static_cast<double>(num_rows() * shape_.hidden_size * shape_.inner_size);
}

double Layer::weight_bytes() const {
  return static_cast<double>(shape_.num_experts * expert_bytes());
}

void Layer::set_rows(std::int64_t rows_per_expert) {
  const std::int64_t count = rows_per_expert * shape_.num_experts;
  offsets_.assign(1, 0);
  for (std::int64_t e = 0; e < shape_.num_experts; ++e) {
    offsets_.push_back((e + 1) * rows_per_expert);
  }
  // Rows of x in another order, as a router would deal them out.
  row_of_.resize(static_cast<std::size_t>(count));
  for (std::size_t r = 0; r < row_of_.size(); ++r) {
    row_of_[r] = static_cast<std::int32_t>(r);
  }
  Random random(7);
  random.shuffle(std::span(row_of_));
  x_.assign(static_cast<std::size_t>(count * shape_.hidden_size * size_of(type_)), 0);
  fill(x_, type_, 1.0F, 2);
  hidden_.assign(static_cast<std::size_t>(count * shape_.inner_size * size_of(type_)), '\xff');
  rows_.assign(static_cast<std::size_t>(count * shape_.hidden_size), std::nanf(""));
}

void Layer::run(const kernels::Execution& execution) {
  const std::int64_t hidden = shape_.hidden_size;
  const std::int64_t inner = shape_.inner_size;
  std::vector<kernels::ConstMatrixView> up_weights;
  std::vector<kernels::ConstMatrixView> down_weights;
  for (std::int64_t e = 0; e < shape_.num_experts; ++e) {
    up_weights.emplace_back(gate_up(e), 2 * inner, hidden, hidden, type_);
    down_weights.emplace_back(down(e), hidden, inner, inner, type_);
  }
  kernels::GroupedUp up;
  const auto x_rows = static_cast<std::int64_t>(x_.size()) / (hidden * size_of(type_));
  up.x = {x_.data(), x_rows, hidden, hidden, type_};
  up.row_of = row_of_;
  up.expert_offsets = offsets_;
  up.gate_up = up_weights;
  up.hidden = {hidden_.data(), num_rows(), inner, inner, type_};
  grouped_up(up, execution);
  kernels::GroupedDown down_task;
  down_task.hidden = up.hidden;
  down_task.expert_offsets = offsets_;
  down_task.down = down_weights;
  down_task.rows = {rows_.data(), num_rows(), hidden, hidden, DType::kFloat32};
  grouped_down(down_task, execution);
}

double Layer::difference_to_reference(std::int64_t num_rows) {
  Layer slow(*this);
  const std::vector<std::int32_t> all_rows = row_of_;
  slow.row_of_.clear();
  slow.offsets_.assign(1, 0);
  std::vector<std::int64_t> places;
  for (std::size_t e = 0; e + 1 < offsets_.size(); ++e) {
    const std::int64_t count = std::min(num_rows, offsets_[e + 1] - offsets_[e]);
    for (std::int64_t i = 0; i < count; ++i) {
      places.push_back(offsets_[e] + i);
      slow.row_of_.push_back(all_rows[static_cast<std::size_t>(places.back())]);
    }
    slow.offsets_.push_back(static_cast<std::int64_t>(places.size()));
  }
  kernels::Threads threads(2);
  slow.rows_.assign(places.size() * static_cast<std::size_t>(shape_.hidden_size), std::nanf(""));
  slow.run({&threads, kernels::Backend::kReference});
  double square = 0.0;
  double worst = 0.0;
  const auto hidden = static_cast<std::size_t>(shape_.hidden_size);
  for (std::size_t i = 0; i < slow.rows_.size(); ++i) {
    const double wanted = slow.rows_[i];
    const double got = rows_[static_cast<std::size_t>(places[i / hidden]) * hidden + i % hidden];
    square += wanted * wanted;
    worst = std::isnan(got) ? got : std::max(worst, std::abs(got - wanted));
  }
  return worst / std::sqrt(square / static_cast<double>(slow.rows_.size()));
}

}  // namespace coterie::bench
