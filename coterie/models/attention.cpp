// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/attention.hpp"

namespace coterie::models {

std::unique_ptr<Attention> make_attention(const ModelConfig& config, bool reference) {
  return config.latent ? make_latent_attention(config, reference)
                       : make_grouped_attention(config, reference);
}

}  // namespace coterie::models
