// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/rotary_kernel.hpp"
#include "coterie/models/row_collectives.hpp"
#include "coterie/models/trainable_attention.hpp"
#include "coterie/models/trainable_norm.hpp"

namespace coterie::models {
namespace {

/// Rotates pairs (i, i + d/2) of each head: x [T, heads, d].
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const std::int64_t half = x.size(2) / 2;
  const at::Tensor turned = at::cat({-x.slice(2, half), x.slice(2, 0, half)}, 2);
  return x * cosines + turned * sines;
}

class RotaryAttention final : public TrainableAttention {
 public:
  RotaryAttention(ParameterStore& store, const std::string& prefix, bool reference)
      : TrainableAttention(store, prefix, reference), group_(store.groups.model()) {
    const std::int64_t H = config_.hidden_size;
    const std::int64_t d = config_.head_dim;
    query_ = projection(store, prefix, "q_proj", config_.num_heads * d, heads_);
    key_ = projection(store, prefix, "k_proj", config_.num_kv_heads * d, kv_heads_);
    value_ = projection(store, prefix, "v_proj", config_.num_kv_heads * d, kv_heads_);
    output_ = register_module("o_proj", std::make_shared<WeightHolder>());
    output_->weight =
        store.add_shard(*output_, prefix + "o_proj.", "weight", {H, config_.num_heads * d}, 1,
                        columns(heads_), Beginning::kNormal);
    if (config_.attention_bias) {
      output_->bias = store.add_whole(*output_, prefix + "o_proj.", "bias", {H}, Beginning::kZeros);
    }
    if (config_.qk_norm != QkNorm::kNone) {
      query_norm_ = norm(store, prefix, "q_norm", config_.num_heads * d, heads_);
      key_norm_ = norm(store, prefix, "k_norm", config_.num_kv_heads * d, kv_heads_);
    }
  }

  at::Tensor forward(const at::Tensor& x, const SequenceShape& shape) override {
    at::Tensor q = at::linear(x, query_->weight, bias_of(*query_));
    at::Tensor k = at::linear(x, key_->weight, bias_of(*key_));
    at::Tensor v = at::linear(x, value_->weight, bias_of(*value_));
    if (config_.qk_norm == QkNorm::kWholeProjection) {
      q = norm_whole(q, query_norm_->weight, config_.num_heads);
      k = norm_whole(k, key_norm_->weight, config_.num_kv_heads);
    }
    if (config_.clip_qkv) {
      const double clip = *config_.clip_qkv;
      q = q.clamp(-clip, clip);
      k = k.clamp(-clip, clip);
      v = v.clamp(-clip, clip);
    }
    q = q.view({x.size(0), heads_.size(), config_.head_dim});
    k = k.view({x.size(0), kv_heads_.size(), config_.head_dim});
    v = v.view({x.size(0), kv_heads_.size(), config_.head_dim});
    if (config_.qk_norm == QkNorm::kEachHead) {
      q = trained_rms_norm(q, query_norm_->weight, config_.rms_norm_eps);
      k = trained_rms_norm(k, key_norm_->weight, config_.rms_norm_eps);
    }
    const at::Tensor mixed =
        attend_sequences(turned(q, shape), turned(k, shape), v, shape.offsets, config_, reference_);
    return at::linear(mixed, output_->weight);
  }

  [[nodiscard]] at::Tensor output_bias() const override { return output_->bias; }

 private:
  using Holder = std::shared_ptr<WeightHolder>;

  /// Each head rotated by its token's position: x [T, heads, d].
  [[nodiscard]] at::Tensor turned(const at::Tensor& x, const SequenceShape& shape) const {
    if (!reference_ && has_rotary_kernel(x, shape.rotary)) {
      return rotary_on_gpu(x, shape);
    }
    const auto of_tokens = [&](const at::Tensor& table) {
      return table.index_select(0, shape.positions).unsqueeze(1).to(x.scalar_type());
    };
    return rotate(x, of_tokens(shape.rotary.cosines), of_tokens(shape.rotary.sines));
  }

  [[nodiscard]] parallel::Share columns(const parallel::Share& heads) const {
    return {heads.begin * config_.head_dim, heads.end * config_.head_dim};
  }

  static std::optional<at::Tensor> bias_of(const WeightHolder& holder) {
    return holder.bias.defined() ? std::optional(holder.bias) : std::nullopt;
  }

  Holder projection(ParameterStore& store, const std::string& prefix, const std::string& name,
                    std::int64_t rows, const parallel::Share& heads) {
    auto holder = register_module(name, std::make_shared<WeightHolder>());
    const std::string base = prefix + name + ".";
    holder->weight = store.add_shard(*holder, base, "weight", {rows, config_.hidden_size}, 0,
                                     columns(heads), Beginning::kNormal);
    if (config_.attention_bias) {
      holder->bias =
          store.add_shard(*holder, base, "bias", {rows}, 0, columns(heads), Beginning::kZeros);
    }
    return holder;
  }

  Holder norm(ParameterStore& store, const std::string& prefix, const std::string& name,
              std::int64_t size, const parallel::Share& heads) {
    auto holder = register_module(name, std::make_shared<WeightHolder>());
    const std::string base = prefix + name + ".";
    holder->weight =
        config_.qk_norm == QkNorm::kEachHead
            ? store.add_whole(*holder, base, "weight", {config_.head_dim}, Beginning::kOnes)
            : store.add_shard(*holder, base, "weight", {size}, 0, columns(heads), Beginning::kOnes);
    return holder;
  }

  /// RMSNorm over all heads of all ranks of the model group: x [T, heads here * d].
  at::Tensor norm_whole(const at::Tensor& x, const at::Tensor& weight, std::int64_t num_heads) {
    if (x.is_cuda() && group_.size() == 1) {
      return trained_rms_norm(x, weight, config_.rms_norm_eps);
    }
    const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor wide = x.to(type);
    const at::Tensor squares = sum_everywhere(wide.pow(2).sum(-1, true), group_);
    const auto width = static_cast<double>(num_heads * config_.head_dim);
    const at::Tensor normal = wide * at::rsqrt(squares / width + config_.rms_norm_eps);
    return normal.to(x.scalar_type()) * weight;
  }

  comm::Communicator& group_;
  Holder query_;
  Holder key_;
  Holder value_;
  Holder output_;
  Holder query_norm_;
  Holder key_norm_;
};

}  // namespace

std::shared_ptr<TrainableAttention> make_rotary_attention(ParameterStore& store,
                                                          const std::string& prefix,
                                                          bool reference) {
  return std::make_shared<RotaryAttention>(store, prefix, reference);
}

}  // namespace coterie::models
