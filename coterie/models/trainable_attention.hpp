// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coterie/models/attention.hpp"
#include "coterie/models/parameter_store.hpp"

namespace coterie::models {

/// What attention needs to know of the tokens of a data coordinate: all of its sequences, one after
/// another.
struct SequenceShape {
  std::vector<std::int64_t> offsets;  ///< [S + 1] from 0 to T
  at::Tensor positions;               ///< int64 [T], from 0 in each sequence
  RotaryTable rotary;                 ///< for the longest sequence, in the parameters' type
};

/// Causal attention of each sequence alone: q [T, heads, d], k and v [T, kv heads, d] ->
/// [T, heads * d]. Consecutive sequences of one length go together. ATen's fused attention; with
/// `reference` plain products and softmax.
at::Tensor attend_sequences(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<std::int64_t>& offsets, const ModelConfig& config,
                            bool reference);

/// Self-attention with this rank's heads: heads / N of the model group and their key heads.
class TrainableAttention : public torch::nn::Module {
 public:
  /// kBadInput where heads do not divide by the model group.
  TrainableAttention(ParameterStore& store, const std::string& prefix, bool reference);
  ~TrainableAttention() override = default;

  /// x [T, H], all tokens of the data coordinate -> partial sums [T, H]; their sum over the model
  /// group, plus `output_bias`, is the result.
  virtual at::Tensor forward(const at::Tensor& x, const SequenceShape& shape) = 0;
  /// [H] or undefined.
  [[nodiscard]] virtual at::Tensor output_bias() const = 0;

 protected:
  const ModelConfig& config_;
  parallel::Share heads_;
  parallel::Share kv_heads_;
  bool reference_;
};

/// Rotary positions, grouped key heads, optional norms and clipping (Mixtral, OLMoE, Qwen3).
std::shared_ptr<TrainableAttention> make_rotary_attention(ParameterStore& store,
                                                          const std::string& prefix,
                                                          bool reference);
/// GPT-2's: one matrix `c_attn` for queries, keys and values, `c_proj`, biases.
std::shared_ptr<TrainableAttention> make_gpt2_attention(ParameterStore& store,
                                                        const std::string& prefix, bool reference);

}  // namespace coterie::models
