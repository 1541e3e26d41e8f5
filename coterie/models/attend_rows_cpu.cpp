// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "coterie/models/attend_rows.hpp"

namespace coterie::models {
namespace {

constexpr std::int64_t kQueryBlock = 64;

/// Rows [begin, end) of T, for one key head.
struct Block {
  std::int64_t head = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Keys that a block looks at: `first` and `count` are multiples of LayerCache::kStep.
struct KeyRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Scores of one row to weights; what the token does not see becomes 0. seen: [low, high) of them.
void softmax_row(float* row, std::int64_t low, std::int64_t high, std::int64_t count, float scale) {
  float largest = row[low];
  for (std::int64_t i = low + 1; i < high; ++i) {
    largest = std::max(largest, row[i]);
  }
  double sum = 0;
  for (std::int64_t i = low; i < high; ++i) {
    row[i] = std::exp((row[i] - largest) * scale);
    sum += static_cast<double>(row[i]);
  }
  const auto inverse = static_cast<float>(1.0 / sum);
  std::fill(row, row + low, 0.0F);
  for (std::int64_t i = low; i < high; ++i) {
    row[i] *= inverse;
  }
  std::fill(row + high, row + count, 0.0F);
}

class Attender {
 public:
  Attender(const at::Tensor& queries, const LayerCache& cache, const AttendOptions& options,
           const at::Tensor& out, kernels::Backend backend)
      : queries_(queries.const_data_ptr<float>()),
        out_(out.mutable_data_ptr<float>()),
        cache_(cache),
        options_(options),
        alone_{nullptr, backend},
        group_(queries.size(1)),
        T_(queries.size(2)),
        past_(cache.length() - T_) {}

  void run(const Block& block) const {
    const KeyRange keys = keys_of(block);
    const std::int64_t n = block.end - block.begin;
    const std::int64_t key_width = cache_.shape().key_width;
    const std::int64_t value_width = cache_.shape().value_width;
    std::vector<float> scores(static_cast<std::size_t>(n * keys.count));
    for (std::int64_t g = 0; g < group_; ++g) {
      const std::int64_t head = block.head * group_ + g;
      const float* query = queries_ + (head * T_ + block.begin) * key_width;
      const kernels::DType fp32 = kernels::DType::kFloat32;
      const kernels::MatrixView score{scores.data(), n, keys.count, keys.count, fp32};
      kernels::linear({query, n, key_width, key_width, fp32},
                      cache_.keys(block.head, keys.first, keys.count), score, alone_);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t position = past_ + block.begin + i;
        softmax_row(scores.data() + i * keys.count, first_seen(position) - keys.first,
                    position + 1 - keys.first, keys.count, static_cast<float>(options_.scale));
      }
      // Straight into [T, heads, value_width]: rows of one head lie a whole token apart.
      const std::int64_t stride = cache_.shape().num_heads * group_ * value_width;
      float* to = out_ + block.begin * stride + head * value_width;
      kernels::linear({scores.data(), n, keys.count, keys.count, fp32},
                      cache_.values(block.head, keys.first, keys.count),
                      {to, n, value_width, stride, fp32}, alone_);
    }
  }

 private:
  [[nodiscard]] std::int64_t first_seen(std::int64_t position) const {
    return options_.sliding_window
               ? std::max<std::int64_t>(0, position + 1 - *options_.sliding_window)
               : 0;
  }
  [[nodiscard]] KeyRange keys_of(const Block& block) const {
    constexpr std::int64_t kStep = LayerCache::kStep;
    const std::int64_t first = first_seen(past_ + block.begin) / kStep * kStep;
    const std::int64_t end = (past_ + block.end + kStep - 1) / kStep * kStep;
    return {first, end - first};
  }

  const float* queries_;
  float* out_;
  const LayerCache& cache_;
  const AttendOptions& options_;
  kernels::Execution alone_;
  std::int64_t group_;
  std::int64_t T_;
  std::int64_t past_;
};

}  // namespace

at::Tensor attend_rows(const at::Tensor& queries, const LayerCache& cache,
                       const AttendOptions& options, const kernels::Execution& execution) {
  if (options.reference) {
    return attend_rows_reference(queries, cache, options);
  }
  const CacheShape& shape = cache.shape();
  const std::int64_t T = queries.size(2);
  const at::Tensor out =
      at::empty({T, shape.num_heads * queries.size(1), shape.value_width}, at::kFloat);
  const Attender attender(queries, cache, options, out, execution.backend);
  const std::int64_t num_blocks = (T + kQueryBlock - 1) / kQueryBlock;
  execution.pool().run(shape.num_heads * num_blocks, [&](std::int64_t part) {
    const std::int64_t begin = part % num_blocks * kQueryBlock;
    attender.run({part / num_blocks, begin, std::min(T, begin + kQueryBlock)});
  });
  return out;
}

}  // namespace coterie::models
