// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "coterie/base/hash.hpp"
#include "coterie/models/decoder.hpp"
#include "coterie/models/family.hpp"

namespace coterie::models {
namespace {

constexpr std::size_t kSample = 256;  // bytes at the start, middle and end of a tensor

void add_config(Hash& hash, const ModelConfig& config) {
  hash.add(config.family);
  for (const std::int64_t number :
       {config.vocab_size, config.hidden_size, config.expert_intermediate_size, config.num_layers,
        config.num_heads, config.num_kv_heads, config.head_dim, config.num_experts, config.top_k,
        config.sliding_window.value_or(0)}) {
    hash.add(static_cast<std::uint64_t>(number));
  }
  for (const bool flag : {config.renormalise, config.tied_head, config.attention_bias}) {
    hash.add(static_cast<std::uint64_t>(flag));
  }
  for (const double number :
       {config.rms_norm_eps, config.rope_theta, config.clip_qkv.value_or(0.0)}) {
    hash.add(std::as_bytes(std::span(&number, 1)));
  }
}

void add_sample(Hash& hash, std::span<const std::byte> bytes) {
  const std::size_t size = std::min(kSample, bytes.size());
  for (const std::size_t begin : {std::size_t{0}, (bytes.size() - size) / 2, bytes.size() - size}) {
    hash.add(bytes.subspan(begin, size));
  }
}

}  // namespace

std::string model_fingerprint(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::set<std::string> routers;
  for (const std::int32_t layer : config.moe_layers) {
    for (const std::string& name : family_named(config.family, "config").names.router) {
      routers.insert(fill_name(name, layer));
    }
  }
  Hash hash;
  add_config(hash, config);
  for (const Tensor& tensor : checkpoint.tensors()) {
    hash.add(tensor.name()).add(name_of(tensor.type()));
    for (const std::int64_t size : tensor.shape()) {
      hash.add(static_cast<std::uint64_t>(size));
    }
    if (routers.contains(tensor.name())) {
      hash.add(tensor.bytes());
    } else {
      add_sample(hash, tensor.bytes());
    }
  }
  return hash.hex();
}

}  // namespace coterie::models
