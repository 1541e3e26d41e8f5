// SPDX-License-Identifier: Apache-2.0
// GPT-2's own parts (Radford et al. 2019): matrices are stored [in, out], as its checkpoints have
// them.
#include <cmath>

#include "coterie/models/dense_mlp.hpp"
#include "coterie/models/trainable_attention.hpp"

namespace coterie::models {
namespace {

/// Residual projections begin smaller: 1 / sqrt(number of residual layers).
double residual_scale(const TrainableConfig& config) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(config.model.num_layers));
}

class Gpt2Attention final : public TrainableAttention {
 public:
  Gpt2Attention(ParameterStore& store, const std::string& prefix, bool reference)
      : TrainableAttention(store, prefix, reference) {
    const std::int64_t H = config_.hidden_size;
    const std::int64_t d = config_.head_dim;
    const parallel::Share columns = {heads_.begin * d, heads_.end * d};
    input_ = register_module("c_attn", std::make_shared<WeightHolder>());
    output_ = register_module("c_proj", std::make_shared<WeightHolder>());
    TrainableParameter weight;
    weight.name = prefix + "c_attn.weight";
    weight.kind = parallel::ParameterKind::kHeadShard;
    weight.deviation = store.config.initializer_range;
    TrainableParameter bias = weight;
    bias.name = prefix + "c_attn.bias";
    bias.beginning = Beginning::kZeros;
    for (std::int64_t part = 0; part < 3; ++part) {  // queries, keys, values
      const std::int64_t first = part * H + columns.begin;
      weight.pieces.push_back({weight.name, {H, 3 * H}, {0, first}, {H, columns.size()}, part, 0});
      bias.pieces.push_back({bias.name, {3 * H}, {first}, {columns.size()}, part, 0});
    }
    input_->weight = store.add(*input_, "weight", std::move(weight), {3, H, columns.size()});
    input_->bias = store.add(*input_, "bias", std::move(bias), {3, columns.size()});
    store.parameters.back().has_decay = false;
    output_->weight = store.add_shard(*output_, prefix + "c_proj.", "weight", {H, H}, 0, columns,
                                      Beginning::kNormal, residual_scale(store.config));
    output_->bias = store.add_whole(*output_, prefix + "c_proj.", "bias", {H}, Beginning::kZeros);
  }

  at::Tensor forward(const at::Tensor& x, const SequenceShape& shape) override {
    const auto part = [&](std::int64_t i) {
      return at::addmm(input_->bias[i], x, input_->weight[i])
          .view({x.size(0), heads_.size(), config_.head_dim});
    };
    return at::mm(attend_sequences(part(0), part(1), part(2), shape.offsets, config_, reference_),
                  output_->weight);
  }

  [[nodiscard]] at::Tensor output_bias() const override { return output_->bias; }

 private:
  std::shared_ptr<WeightHolder> input_;   // [3, H, heads * d]: queries, keys, values
  std::shared_ptr<WeightHolder> output_;  // [heads * d, H]
};

}  // namespace

DenseMlp::DenseMlp(ParameterStore& store, const std::string& prefix) {
  const std::int64_t H = store.config.model.hidden_size;
  const std::int64_t width = store.config.dense_intermediate_size;
  const parallel::Share share = parallel::equal_share_of(
      width, store.sizes().model, store.model_rank(), prefix + ": n_inner", "model");
  up_ = register_module("c_fc", std::make_shared<WeightHolder>());
  down_ = register_module("c_proj", std::make_shared<WeightHolder>());
  up_->weight =
      store.add_shard(*up_, prefix + "c_fc.", "weight", {H, width}, 1, share, Beginning::kNormal);
  up_->bias = store.add_shard(*up_, prefix + "c_fc.", "bias", {width}, 0, share, Beginning::kZeros);
  down_->weight = store.add_shard(*down_, prefix + "c_proj.", "weight", {width, H}, 0, share,
                                  Beginning::kNormal, residual_scale(store.config));
  down_->bias = store.add_whole(*down_, prefix + "c_proj.", "bias", {H}, Beginning::kZeros);
}

at::Tensor DenseMlp::forward(const at::Tensor& x) {
  return at::mm(at::gelu(at::addmm(up_->bias, x, up_->weight), "tanh"), down_->weight);
}

std::shared_ptr<TrainableAttention> make_gpt2_attention(ParameterStore& store,
                                                        const std::string& prefix, bool reference) {
  return std::make_shared<Gpt2Attention>(store, prefix, reference);
}

}  // namespace coterie::models
