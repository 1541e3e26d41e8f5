// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): of a token only a
// latent c [rank] and one rotated key [rope] are kept. Head h has the key (U_h c, rotated key) and
// the value W_h c, so
//
//     q . (U_h c) = (U_h^T q) . c        and        sum_s p_s W_h c_s = W_h (sum_s p_s c_s)
//
// and the heads attend to the latents themselves: one key head of width rank + rope, whose values
// are the latents. `reference` spells keys and values out instead.
#include <cmath>

#include "coterie/models/attend_rows.hpp"
#include "coterie/models/attention.hpp"
#include "coterie/models/row_math.hpp"

namespace coterie::models {
namespace {

class LatentAttention final : public Attention {
 public:
  LatentAttention(const ModelConfig& config, bool reference)
      : config_(config), latent_(*config.latent) {
    const auto width = static_cast<double>(latent_.nope_width + latent_.rope_width);
    options_.scale = rotary_score_factor(config) / std::sqrt(width);
    options_.reference = reference;
  }

  [[nodiscard]] CacheShape cache_shape() const override {
    return {1, latent_.kv_rank + latent_.rope_width, latent_.kv_rank};
  }

  at::Tensor forward(const LayerWeights& weights, const at::Tensor& x, const RotaryTable& rotary,
                     LayerCache& cache, const kernels::Execution& execution) const override {
    const std::int64_t T = x.size(0);
    const at::Tensor q = queries(weights, x, execution)
                             .view({T, config_.num_heads, latent_.nope_width + latent_.rope_width});
    rotate_rows(q.slice(2, latent_.nope_width), rotary, cache.length(), config_.rotary_interleaved);
    const at::Tensor down = apply_linear(x, weights.key_down, weights.key_down_bias, execution);
    const at::Tensor latents =
        rms_norm(down.slice(1, 0, latent_.kv_rank), weights.key_norm, latent_.norm_eps);
    const at::Tensor rope = down.slice(1, latent_.kv_rank).unsqueeze(1);
    rotate_rows(rope, rotary, cache.length(), config_.rotary_interleaved);
    const at::Tensor kept = latents.unsqueeze(1);
    cache.append(at::cat({kept, rope}, 2), kept);
    const at::Tensor mixed = options_.reference ? spelled_out(weights, q, cache)
                                                : absorbed(weights, q, cache, execution);
    return apply_linear(mixed, weights.output, weights.output_bias, execution);
  }

 private:
  [[nodiscard]] at::Tensor queries(const LayerWeights& weights, const at::Tensor& x,
                                   const kernels::Execution& execution) const {
    if (!weights.query_down.defined()) {
      return apply_linear(x, weights.query, {}, execution);
    }
    const at::Tensor down = apply_linear(x, weights.query_down, weights.query_down_bias, execution);
    return apply_linear(rms_norm(down, weights.query_norm, latent_.norm_eps), weights.query, {},
                        execution);
  }

  /// q [T, heads, nope + rope] -> [T, heads * value width]
  [[nodiscard]] at::Tensor absorbed(const LayerWeights& weights, const at::Tensor& q,
                                    const LayerCache& cache,
                                    const kernels::Execution& execution) const {
    const std::int64_t T = q.size(0);
    const std::int64_t heads = config_.num_heads;
    at::Tensor wide = at::empty({1, heads, T, latent_.kv_rank + latent_.rope_width}, at::kFloat);
    for (std::int64_t h = 0; h < heads; ++h) {
      at::Tensor rows = wide[0][h];
      at::Tensor begin = rows.slice(1, 0, latent_.kv_rank);
      kernels::linear(view_of(q.select(1, h).slice(1, 0, latent_.nope_width)),
                      view_of(weights.key_up[h]), mutable_view_of(begin), execution);
      rows.slice(1, latent_.kv_rank).copy_(q.select(1, h).slice(1, latent_.nope_width));
    }
    const at::Tensor mixed = attend_rows(wide, cache, options_, execution);  // [T, heads, rank]
    at::Tensor out = at::empty({T, heads * latent_.value_width}, at::kFloat);
    for (std::int64_t h = 0; h < heads; ++h) {
      at::Tensor part = out.slice(1, h * latent_.value_width, (h + 1) * latent_.value_width);
      kernels::linear(view_of(mixed.select(1, h)), view_of(weights.value_up[h]),
                      mutable_view_of(part), execution);
    }
    return out;
  }

  /// The same with keys and values of every head.
  [[nodiscard]] at::Tensor spelled_out(const LayerWeights& weights, const at::Tensor& q,
                                       const LayerCache& cache) const {
    const at::Tensor kept = cache.all_keys()[0];  // [S, rank + rope]
    const at::Tensor latents = kept.slice(1, 0, latent_.kv_rank);
    const at::Tensor rope = kept.slice(1, latent_.kv_rank);
    LayerCache whole({config_.num_heads, q.size(2), latent_.value_width});
    std::vector<at::Tensor> keys;
    std::vector<at::Tensor> values;
    for (std::int64_t h = 0; h < config_.num_heads; ++h) {
      const at::Tensor up = weights.key_up[h].to(at::kFloat);  // [rank, nope]
      keys.push_back(at::cat({at::matmul(latents, up), rope}, 1));
      values.push_back(at::linear(latents, weights.value_up[h].to(at::kFloat)));
    }
    whole.append(at::stack(keys, 1), at::stack(values, 1));
    const at::Tensor queries = q.transpose(0, 1).contiguous().unsqueeze(1);
    return attend_rows_reference(queries, whole, options_).reshape({q.size(0), -1});
  }

  const ModelConfig& config_;
  const LatentSizes& latent_;
  AttendOptions options_;
};

}  // namespace

std::unique_ptr<Attention> make_latent_attention(const ModelConfig& config, bool reference) {
  return std::make_unique<LatentAttention>(config, reference);
}

}  // namespace coterie::models
