// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "coterie/models/model_config.hpp"

namespace coterie::models {

/// Cosines and sines of the rotary embedding for positions 0, 1, ...: both [positions, width] (the
/// two halves equal), fp32, times the embedding's own factor (YaRN).
struct RotaryTable {
  at::Tensor cosines;
  at::Tensor sines;
};

/// The plain embedding by ATen over all columns of a head: training's table, whose bits its golden
/// losses hold. The last positions' bits depend on `num_positions`.
RotaryTable make_rotary_table(const ModelConfig& config, std::int64_t num_positions);

/// The decoder's table. Angles are fp32 products of position and frequency, as transformers
/// computes them. A position's bits do not depend on `num_positions`.
RotaryTable make_decoder_rotary_table(const ModelConfig& config, std::int64_t num_positions);

/// [width / 2] frequencies theta^(-2i / width); with YaRN (arXiv:2309.00071, section 3) blended
/// with those divided by `factor`.
std::vector<float> rotary_frequencies(const ModelConfig& config);

/// What scores are multiplied by beside 1 / sqrt(width): YaRN's mscale_all_dim, squared, in the
/// families with latent attention (DeepSeek-V2's code); else 1.
double rotary_score_factor(const ModelConfig& config);

/// Rotates the first `table` width columns of each head in place: x [T, heads, d] fp32 with any
/// strides whose last is 1; rows are positions first, first + 1, ... Pairs are (i, i + width/2), or
/// (2i, 2i + 1) with config.rotary_interleaved.
void rotate_rows(const at::Tensor& x, const RotaryTable& table, std::int64_t first,
                 bool interleaved);

}  // namespace coterie::models
