// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coterie/plan/schedule/schedule.hpp"

namespace coterie::bench {

/// One of the grid's 1458 layers (FSMoE, section 6.1).
struct GridLayer {
  double batch = 1;         ///< B, sequences of a node
  double kv_heads = 8;      ///< of 32 query heads
  double length = 512;      ///< L, tokens a sequence
  double hidden = 1024;     ///< M
  double ratio = 2;         ///< H / M
  double picks = 1;         ///< k f: rows a token, padding included
  bool is_mixtral = false;  ///< three products an expert instead of two
};

/// A published cluster with the corrected coefficients of the audit (README.md here).
struct Testbed {
  std::string name;
  double devices_per_node = 8;
  std::vector<double> lengths;
  cost::CostModel exchange, all_gather, reduce_scatter, all_reduce;  ///< by bytes
  cost::CostModel simple_experts, mixtral_experts;  ///< by multiply-adds of one product
  double simple_calls = 1;                          ///< calls of the model above an expert makes
  double mixtral_calls = 1;
  double work_factor = 1;  ///< the models' size over the multiply-adds of one product
  cost::CostModel attention_forward, attention_backward;  ///< by multiply-adds
};

/// Testbed A (48 A6000) with the released script's coefficients: "A-code-exp" in the audit.
Testbed testbed_a();
/// Testbed B (32 RTX 2080 Ti), bytes instead of elements and products three times as slow:
/// "B-bytes-x3".
Testbed testbed_b();

/// The grid of a testbed.
std::vector<GridLayer> grid_of(const Testbed& testbed);

/// What a layer costs on one device of the testbed.
schedule::LayerWork work_of(const Testbed& testbed, const GridLayer& layer);

}  // namespace coterie::bench
