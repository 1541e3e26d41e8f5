// SPDX-License-Identifier: Apache-2.0
#include "coterie/run/layer/expert_products.hpp"

#include "coterie/base/error.hpp"

namespace coterie::layer {
namespace {

using kernels::ConstMatrixView;

void check_weight(const ConstMatrixView& weight, std::int64_t rows, std::int64_t columns,
                  const std::string& where) {
  COTERIE_REQUIRE(weight.data != nullptr, where, " is missing, but this process computes it");
  COTERIE_REQUIRE(weight.rows == rows && weight.columns == columns, where, " is [", weight.rows,
                  ", ", weight.columns, "], not [", rows, ", ", columns, "]");
  COTERIE_REQUIRE(
      weight.type == kernels::DType::kFloat32 || weight.type == kernels::DType::kBfloat16, where,
      " is neither float32 nor bfloat16");
}

}  // namespace

ExpertProducts::ExpertProducts(const MoeOptions& options, const MoeWeights& weights,
                               const std::vector<std::int32_t>& experts)
    : hidden_(options.hidden),
      intermediate_(options.intermediate),
      activation_(options.activation),
      poison_buffers_(options.exchange.poison_buffers) {
  for (const std::int32_t expert : experts) {
    const auto e = static_cast<std::size_t>(expert);
    const std::string where = join_message(options.name, ": expert ", expert);
    check_weight(weights.gate_up.at(e), 2 * intermediate_, hidden_, where + ": gate_up");
    check_weight(weights.down.at(e), hidden_, intermediate_, where + ": down");
    gate_up_.push_back(weights.gate_up[e]);
    down_.push_back(weights.down[e]);
  }
}

ConstMatrixView ExpertProducts::compute(const exchange::DeviceWork& work, ProductBuffers& buffers,
                                        const kernels::Execution& execution) const {
  const auto num_rows = std::ssize(work.row_of);
  const kernels::MatrixView hidden =
      buffers.hidden.resize_rows(num_rows, intermediate_, work.rows.type, poison_buffers_);
  const kernels::MatrixView outputs =
      buffers.outputs.resize_rows(num_rows, hidden_, kernels::DType::kFloat32, poison_buffers_);
  if (num_rows > 0) {
    kernels::grouped_up(
        {work.rows, work.row_of, work.expert_offsets, gate_up_, hidden, activation_}, execution);
    kernels::grouped_down({hidden, work.expert_offsets, down_, outputs}, execution);
  }
  return outputs;
}

}  // namespace coterie::layer
