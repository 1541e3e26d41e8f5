// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coterie/run/layer/moe_options.hpp"

namespace coterie::layer {

/// The experts that one device holds. Immutable.
class ExpertProducts {
 public:
  /// Throws kBadInput naming layer, expert and tensor if a held expert's weights are missing or
  /// have another shape or type.
  ExpertProducts(const MoeOptions& options, const MoeWeights& weights,
                 const std::vector<std::int32_t>& experts);

  /// down(act(gate x) * up x) of each expanded row, fp32 [expanded, H]; the view stays valid until
  /// the next call with the same buffers. Hidden rows have the type of the inputs.
  kernels::ConstMatrixView compute(const exchange::DeviceWork& work, ProductBuffers& buffers,
                                   const kernels::Execution& execution) const;

 private:
  std::int64_t hidden_;
  std::int64_t intermediate_;
  kernels::Activation activation_;
  bool poison_buffers_;
  std::vector<kernels::ConstMatrixView> gate_up_;  // [slots]
  std::vector<kernels::ConstMatrixView> down_;     // [slots]
};

}  // namespace coterie::layer
