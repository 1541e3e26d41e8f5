// SPDX-License-Identifier: Apache-2.0
// Multi-head attention whose heads share keys in groups (arXiv:2305.13245); one head a group is
// plain multi-head attention. Switches: biases, norms of queries and keys, clipping, a window.
#include <cmath>

#include "coterie/models/attend_rows.hpp"
#include "coterie/models/attention.hpp"
#include "coterie/models/row_math.hpp"

namespace coterie::models {
namespace {

class GroupedAttention final : public Attention {
 public:
  GroupedAttention(const ModelConfig& config, bool reference) : config_(config) {
    options_.scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
    options_.sliding_window = config.sliding_window;
    options_.reference = reference;
  }

  [[nodiscard]] CacheShape cache_shape() const override {
    return {config_.num_kv_heads, config_.head_dim, config_.head_dim};
  }

  at::Tensor forward(const LayerWeights& weights, const at::Tensor& x, const RotaryTable& rotary,
                     LayerCache& cache, const kernels::Execution& execution) const override {
    const std::int64_t T = x.size(0);
    const std::int64_t past = cache.length();
    at::Tensor q = apply_linear(x, weights.query, weights.query_bias, execution);
    at::Tensor k = apply_linear(x, weights.key, weights.key_bias, execution);
    at::Tensor v = apply_linear(x, weights.value, weights.value_bias, execution);
    if (config_.qk_norm == QkNorm::kWholeProjection) {
      q = rms_norm(q, weights.query_norm, config_.rms_norm_eps);
      k = rms_norm(k, weights.key_norm, config_.rms_norm_eps);
    }
    if (config_.clip_qkv) {
      for (at::Tensor* tensor : {&q, &k, &v}) {
        tensor->clamp_(-*config_.clip_qkv, *config_.clip_qkv);
      }
    }
    q = q.view({T, config_.num_heads, config_.head_dim});
    k = k.view({T, config_.num_kv_heads, config_.head_dim});
    v = v.view({T, config_.num_kv_heads, config_.head_dim});
    if (config_.qk_norm == QkNorm::kEachHead) {
      q = rms_norm(q, weights.query_norm, config_.rms_norm_eps);
      k = rms_norm(k, weights.key_norm, config_.rms_norm_eps);
    }
    rotate_rows(q, rotary, past, config_.rotary_interleaved);
    rotate_rows(k, rotary, past, config_.rotary_interleaved);
    cache.append(k, v);
    const std::int64_t group = config_.num_heads / config_.num_kv_heads;
    const at::Tensor queries =
        q.transpose(0, 1).contiguous().view({config_.num_kv_heads, group, T, config_.head_dim});
    const at::Tensor mixed = attend_rows(queries, cache, options_, execution);
    return apply_linear(mixed.reshape({T, config_.num_heads * config_.head_dim}), weights.output,
                        weights.output_bias, execution);
  }

 private:
  const ModelConfig& config_;
  AttendOptions options_;
};

}  // namespace

std::unique_ptr<Attention> make_grouped_attention(const ModelConfig& config, bool reference) {
  return std::make_unique<GroupedAttention>(config, reference);
}

}  // namespace coterie::models
