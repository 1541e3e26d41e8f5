// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/trainable_attention.hpp"

#include <cmath>
#include <limits>
#include <optional>

#include "coterie/base/error.hpp"

namespace coterie::models {
namespace {

/// bool [L, L], true where a query may see a key.
at::Tensor visible(std::int64_t length, const ModelConfig& config, const at::Device& device) {
  const at::Tensor query = at::arange(length, at::device(device)).unsqueeze(1);
  const at::Tensor key = at::arange(length, at::device(device)).unsqueeze(0);
  at::Tensor seen = key <= query;
  if (config.sliding_window) {
    seen = seen & (key > query - *config.sliding_window);
  }
  return seen;
}

/// q [B, heads, L, d], k and v with as many heads.
at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const ModelConfig& config) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  const at::Tensor masked = scores.masked_fill(visible(q.size(2), config, q.device()).logical_not(),
                                               -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(masked, -1), v);
}

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const ModelConfig& config) {
  const std::int64_t length = q.size(2);
  if (config.sliding_window && *config.sliding_window < length) {
    return at::scaled_dot_product_attention(q, k, v, visible(length, config, q.device()), 0.0,
                                            false);
  }
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
}

}  // namespace

at::Tensor attend_sequences(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<std::int64_t>& offsets, const ModelConfig& config,
                            bool reference) {
  const std::int64_t group = q.size(1) / k.size(1);
  const at::Tensor keys = group == 1 ? k : k.repeat_interleave(group, 1);
  const at::Tensor values = group == 1 ? v : v.repeat_interleave(group, 1);
  std::vector<at::Tensor> parts;
  const std::size_t num_sequences = offsets.size() - 1;
  for (std::size_t s = 0; s < num_sequences;) {
    const std::int64_t length = offsets[s + 1] - offsets[s];
    std::size_t end = s + 1;
    while (end < num_sequences && offsets[end + 1] - offsets[end] == length) {
      ++end;
    }
    const auto count = static_cast<std::int64_t>(end - s);
    if (length > 0) {
      const auto batched = [&](const at::Tensor& x) {  // [B, heads, L, d]
        return x.slice(0, offsets[s], offsets[end])
            .view({count, length, x.size(1), x.size(2)})
            .transpose(1, 2);
      };
      const at::Tensor mixed =
          reference ? plain_attention(batched(q), batched(keys), batched(values), config)
                    : fused_attention(batched(q), batched(keys), batched(values), config);
      parts.push_back(mixed.transpose(1, 2).reshape({count * length, q.size(1) * q.size(2)}));
    }
    s = end;
  }
  if (parts.empty()) {  // no tokens: nothing, but still in the graph
    return q.flatten(1) + (keys + values).flatten(1);
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

TrainableAttention::TrainableAttention(ParameterStore& store, const std::string& prefix,
                                       bool reference)
    : config_(store.config.model), reference_(reference) {
  const int size = store.sizes().model;
  heads_ = parallel::equal_share_of(config_.num_heads, size, store.model_rank(),
                                    prefix + ": num_attention_heads", "model");
  kv_heads_ = parallel::equal_share_of(config_.num_kv_heads, size, store.model_rank(),
                                       prefix + ": num_key_value_heads", "model");
}

}  // namespace coterie::models
