// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

#include "coterie/models/key_value_cache.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::models {

struct AttendOptions {
  double scale = 1;                            ///< of the products of queries and keys
  std::optional<std::int64_t> sliding_window;  ///< a token sees at most so many, itself included
  bool reference = false;                      ///< the obvious form in ATen
};

/// Causal attention of a sequence's last T tokens, whose keys and values `cache` holds already:
///
///     out_t = sum over the tokens s that t sees of softmax_s(scale q_t . k_s) v_s
///
/// queries [key heads, group, T, key_width], contiguous: heads that share a key head side by side.
/// Returns [T, key heads * group, value_width]. All fp32.
///
/// A token's bits depend on its query and the cache up to it alone, not on T: every product is
/// kernels::linear over a number of keys that is padded with weights of 0 from a multiple of
/// LayerCache::kStep on, the largest score is exact, and the terms of the softmax are added
/// in ascending order in fp64. So a prompt may be cut into any chunks. `reference` (at::softmax and
/// at::bmm over all keys) does not promise that.
at::Tensor attend_rows(const at::Tensor& queries, const LayerCache& cache,
                       const AttendOptions& options, const kernels::Execution& execution);

/// The twin in ATen; called by attend_rows.
at::Tensor attend_rows_reference(const at::Tensor& queries, const LayerCache& cache,
                                 const AttendOptions& options);

}  // namespace coterie::models
