// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "coterie/models/attend_rows.hpp"

namespace coterie::models {

at::Tensor attend_rows_reference(const at::Tensor& queries, const LayerCache& cache,
                                 const AttendOptions& options) {
  const std::int64_t T = queries.size(2);
  const std::int64_t num_keys = cache.length();
  const at::Tensor query = at::arange(num_keys - T, num_keys).unsqueeze(1);
  const at::Tensor key = at::arange(num_keys).unsqueeze(0);
  at::Tensor hidden = key > query;
  if (options.sliding_window) {
    hidden = hidden | (key <= query - *options.sliding_window);
  }
  const at::Tensor keys = cache.all_keys().unsqueeze(1);      // [kv, 1, S, width]
  const at::Tensor values = cache.all_values().unsqueeze(1);  // [kv, 1, S, width]
  const at::Tensor scores = at::matmul(queries, keys.transpose(2, 3))
                                .mul_(options.scale)
                                .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  const at::Tensor mixed = at::matmul(at::softmax(scores, -1), values);  // [kv, group, T, width]
  return mixed.permute({2, 0, 1, 3}).reshape({T, -1, mixed.size(3)});
}

}  // namespace coterie::models
