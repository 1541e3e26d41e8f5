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

/// Switches that came later: nothing is added for a model without them, so that its fingerprint
/// stays what traces and placements carry.
void add_later_switches(Hash& hash, const ModelConfig& config) {
  const ModelConfig none;
  const auto add = [&](const std::string& name, double value) {
    hash.add(name).add(std::as_bytes(std::span(&value, 1)));
  };
  if (config.latent) {
    for (const std::int64_t size : {config.latent->query_rank, config.latent->kv_rank,
                                    config.latent->nope_width, config.latent->rope_width}) {
      add("latent", static_cast<double>(size));
    }
  }
  if (config.router != none.router) {
    const RouterOptions& router = config.router;
    add("router", router.score == RouterScore::kSigmoid ? 1 : 0);
    add("groups", static_cast<double>(router.num_groups));
    add("top groups", static_cast<double>(router.top_groups));
    add("scale", router.scale);
  }
  if (config.yarn) {
    add("yarn", config.yarn->factor);
    add("positions", static_cast<double>(config.yarn->original_positions));
    add("mscale", config.yarn->mscale);
    add("mscale_all_dim", config.yarn->mscale_all_dim);
  }
  if (config.rotary_dim) {
    add("rotary_dim", static_cast<double>(*config.rotary_dim));
  }
  if (config.rotary_interleaved) {
    add("interleaved", 1);
  }
  if (static_cast<std::int64_t>(config.moe_layers.size()) != config.num_layers) {
    for (const std::int32_t layer : config.moe_layers) {
      add("moe layer", layer);
    }
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
  add_later_switches(hash, config);
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
