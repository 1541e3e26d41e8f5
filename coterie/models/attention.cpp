// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coterie::models {
namespace {

constexpr std::int64_t kQueryBlock = 128;

/// [T, heads * d] -> [heads, T, d], contiguous
at::Tensor split_heads(const at::Tensor& x, std::int64_t num_heads) {
  return x.view({x.size(0), num_heads, x.size(1) / num_heads}).transpose(0, 1).contiguous();
}

/// Rotates pairs (i, i + d/2) of each head: x [heads, T, d].
at::Tensor rotate(const at::Tensor& x, const RotaryTable& rotary) {
  const std::int64_t half = x.size(2) / 2;
  const at::Tensor turned = at::cat({-x.slice(2, half), x.slice(2, 0, half)}, 2);
  return x * rotary.cosines.slice(0, 0, x.size(1)) + turned * rotary.sines.slice(0, 0, x.size(1));
}

/// 0 where query first + i may see key j, -inf elsewhere: [num_queries, num_keys], keys counted
/// from `first_key`.
at::Tensor visibility(std::int64_t first_query, std::int64_t num_queries, std::int64_t first_key,
                      std::int64_t num_keys, const ModelConfig& config) {
  const at::Tensor query = at::arange(first_query, first_query + num_queries).unsqueeze(1);
  const at::Tensor key = at::arange(first_key, first_key + num_keys).unsqueeze(0);
  at::Tensor hidden = key > query;
  if (config.sliding_window) {
    hidden = hidden | (key <= query - *config.sliding_window);
  }
  return at::zeros({num_queries, num_keys})
      .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
}

/// q [heads, T, d], k and v [kv heads, T, d] -> [T, heads * d]
at::Tensor attend_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const ModelConfig& config) {
  const std::int64_t T = q.size(1);
  const std::int64_t d = q.size(2);
  const std::int64_t kv_heads = k.size(0);
  const std::int64_t group = q.size(0) / kv_heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  at::Tensor out = at::empty({T, q.size(0) * d}, q.options());
  for (std::int64_t begin = 0; begin < T; begin += kQueryBlock) {
    const std::int64_t end = std::min(T, begin + kQueryBlock);
    const std::int64_t n = end - begin;
    const std::int64_t first_key =
        config.sliding_window ? std::max<std::int64_t>(0, begin + 1 - *config.sliding_window) : 0;
    const std::int64_t num_keys = end - first_key;
    // Heads that share a key head stand below each other: one product a key head, nothing copied.
    const at::Tensor queries = q.slice(1, begin, end).reshape({kv_heads, group * n, d});
    at::Tensor scores = at::bmm(queries, k.slice(1, first_key, end).transpose(1, 2)).mul_(scale);
    scores = scores.view({kv_heads, group, n, num_keys});
    scores.add_(visibility(begin, n, first_key, num_keys, config));
    const at::Tensor shares = at::softmax(scores, -1).view({kv_heads, group * n, num_keys});
    const at::Tensor mixed = at::bmm(shares, v.slice(1, first_key, end));
    out.slice(0, begin, end)
        .view({n, q.size(0), d})
        .copy_(mixed.view({kv_heads * group, n, d}).transpose(0, 1));
  }
  return out;
}

}  // namespace

RotaryTable make_rotary_table(const ModelConfig& config, std::int64_t num_positions) {
  const auto d = static_cast<double>(config.head_dim);
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, at::kFloat) / d;
  const at::Tensor frequencies = 1.0 / at::pow(config.rope_theta, exponents);
  const at::Tensor angles =
      at::arange(num_positions, at::kFloat).unsqueeze(1) * frequencies.unsqueeze(0);
  const at::Tensor both = at::cat({angles, angles}, 1);
  return {both.cos(), both.sin()};
}

at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                        const kernels::Execution& execution) {
  at::Tensor y = at::empty({x.size(0), w.size(0)}, at::kFloat);
  kernels::linear(view_of(x), view_of(w), mutable_view_of(y), execution);
  return bias.defined() ? y.add_(bias) : y;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
}

at::Tensor attend(const at::Tensor& x, const LayerWeights& weights, const ModelConfig& config,
                  const RotaryTable& rotary, const kernels::Execution& execution) {
  at::Tensor q = apply_linear(x, weights.query, weights.query_bias, execution);
  at::Tensor k = apply_linear(x, weights.key, weights.key_bias, execution);
  at::Tensor v = apply_linear(x, weights.value, weights.value_bias, execution);
  if (weights.query_norm.defined()) {
    q = rms_norm(q, weights.query_norm, config.rms_norm_eps);
    k = rms_norm(k, weights.key_norm, config.rms_norm_eps);
  }
  if (config.clip_qkv) {
    for (at::Tensor* tensor : {&q, &k, &v}) {
      tensor->clamp_(-*config.clip_qkv, *config.clip_qkv);
    }
  }
  q = rotate(split_heads(q, config.num_heads), rotary);
  k = rotate(split_heads(k, config.num_kv_heads), rotary);
  v = split_heads(v, config.num_kv_heads);
  return apply_linear(attend_heads(q, k, v, config), weights.output, weights.output_bias,
                      execution);
}

}  // namespace coterie::models
