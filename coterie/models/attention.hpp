// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "coterie/models/key_value_cache.hpp"
#include "coterie/models/model_config.hpp"
#include "coterie/models/rotary.hpp"
#include "coterie/models/weights.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::models {

/// A kind of self-attention. Adding one: a file like grouped_attention.cpp and a line in
/// make_attention(). A token's bits depend on its sequence up to it alone: not on how the sequence
/// was cut into calls, nor on threads (unless `reference`). Immutable, thread-safe.
class Attention {
 public:
  Attention() = default;
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;
  virtual ~Attention() = default;

  /// What it keeps of a token in a layer.
  [[nodiscard]] virtual CacheShape cache_shape() const = 0;

  /// The next T tokens of one sequence, of which `cache` holds the tokens before: x [T, H]
  /// (normalised) -> [T, H]; the cache grows by T. The rotary table covers all positions.
  virtual at::Tensor forward(const LayerWeights& weights, const at::Tensor& x,
                             const RotaryTable& rotary, LayerCache& cache,
                             const kernels::Execution& execution) const = 0;
};

/// The attention that the config names. `reference`: its obvious form in ATen. The config must
/// outlive it.
std::unique_ptr<Attention> make_attention(const ModelConfig& config, bool reference);

std::unique_ptr<Attention> make_grouped_attention(const ModelConfig& config, bool reference);
std::unique_ptr<Attention> make_latent_attention(const ModelConfig& config, bool reference);

}  // namespace coterie::models
