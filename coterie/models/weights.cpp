// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/weights.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/models/tensor_ledger.hpp"
#include "coterie/models/tensor_values.hpp"

namespace coterie::models {
namespace {

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, const Family& family,
         at::ScalarType matrix_type)
      : ledger_(checkpoint),
        values_(config.fp8_blocks),
        config_(config),
        family_(family),
        matrix_type_(matrix_type) {}

  Weights load(const LocalExperts& local_experts) {
    const TensorNames& names = family_.names;
    const std::int64_t H = config_.hidden_size;
    Weights weights;
    weights.embedding = matrix(names.embedding, config_.vocab_size, H);
    weights.final_norm = vector(names.final_norm, H);
    weights.head = config_.tied_head ? tied_head(weights.embedding)
                                     : matrix(names.head, config_.vocab_size, H);
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      weights.layers.push_back(load_layer(layer));
      if (config_.is_moe_layer(layer)) {
        load_experts(layer, local_experts[static_cast<std::size_t>(layer)], weights.layers.back());
      }
    }
    pass_over_extra_layers();
    ledger_.finish();
    return weights;
  }

 private:
  at::Tensor vector(const std::string& name, std::int64_t size) {
    return values_.tensor(ledger_, name, {size}, at::kFloat);
  }
  at::Tensor matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    return values_.tensor(ledger_, name, {rows, columns}, matrix_type_);
  }

  /// Some writers store the tied head too: fine if it is the same.
  at::Tensor tied_head(const at::Tensor& embedding) {
    const std::string& name = family_.names.head;
    if (ledger_.has(name)) {
      COTERIE_REQUIRE(at::equal(matrix(name, config_.vocab_size, config_.hidden_size), embedding),
                      ledger_.place(name), ": differs from ", family_.names.embedding,
                      ", but config.json says tie_word_embeddings");
    }
    return embedding;
  }

  /// What precision a model computes with may not hide in a type: fp32.
  at::Tensor small(const std::string& name, std::initializer_list<std::int64_t> shape) {
    return values_.tensor(ledger_, name, shape, at::kFloat);
  }

  LayerWeights load_layer(std::int64_t layer) {
    const TensorNames& names = family_.names;
    LayerWeights weights;
    weights.attention_norm = vector(fill_name(names.attention_norm, layer), config_.hidden_size);
    weights.moe_norm = vector(fill_name(names.moe_norm, layer), config_.hidden_size);
    const std::string attention = fill_name(names.attention, layer);
    if (config_.latent) {
      load_latent_attention(attention, weights);
    } else {
      load_grouped_attention(attention, weights);
    }
    if (!config_.is_moe_layer(layer)) {
      weights.dense = mlp(fill_name(names.dense_mlp, layer), config_.dense_intermediate_size);
      return weights;
    }
    if (config_.shared_intermediate_size > 0) {
      weights.shared = mlp(fill_name(names.shared_mlp, layer), config_.shared_intermediate_size);
    }
    if (config_.shared_gate) {
      weights.shared_gate = small(fill_name(names.shared_gate, layer), {1, config_.hidden_size});
    }
    weights.router = small(ledger_.existing(filled(names.router, layer)),
                           {config_.num_experts, config_.hidden_size});
    if (config_.router.correction_bias) {
      weights.router_bias =
          small(ledger_.existing(filled(names.router_bias, layer)), {config_.num_experts});
    }
    return weights;
  }

  void load_grouped_attention(const std::string& attention, LayerWeights& weights) {
    const std::int64_t H = config_.hidden_size;
    const std::int64_t wide = config_.num_heads * config_.head_dim;
    const std::int64_t narrow = config_.num_kv_heads * config_.head_dim;
    weights.query = matrix(attention + "q_proj.weight", wide, H);
    weights.key = matrix(attention + "k_proj.weight", narrow, H);
    weights.value = matrix(attention + "v_proj.weight", narrow, H);
    weights.output = matrix(attention + "o_proj.weight", H, wide);
    if (config_.attention_bias) {
      weights.query_bias = vector(attention + "q_proj.bias", wide);
      weights.key_bias = vector(attention + "k_proj.bias", narrow);
      weights.value_bias = vector(attention + "v_proj.bias", narrow);
    }
    if (config_.output_bias) {
      weights.output_bias = vector(attention + "o_proj.bias", H);
    }
    if (config_.qk_norm != QkNorm::kNone) {
      const bool whole = config_.qk_norm == QkNorm::kWholeProjection;
      weights.query_norm = vector(attention + "q_norm.weight", whole ? wide : config_.head_dim);
      weights.key_norm = vector(attention + "k_norm.weight", whole ? narrow : config_.head_dim);
    }
  }

  void load_latent_attention(const std::string& attention, LayerWeights& weights) {
    const LatentSizes& latent = *config_.latent;
    const std::int64_t H = config_.hidden_size;
    const std::int64_t heads = config_.num_heads;
    const std::int64_t kept = latent.kv_rank + latent.rope_width;
    const std::int64_t wide = heads * (latent.nope_width + latent.rope_width);
    if (latent.query_rank > 0) {
      weights.query_down = matrix(attention + "q_a_proj.weight", latent.query_rank, H);
      weights.query_norm = vector(attention + "q_a_layernorm.weight", latent.query_rank);
      weights.query = matrix(attention + "q_b_proj.weight", wide, latent.query_rank);
    } else {
      weights.query = matrix(attention + "q_proj.weight", wide, H);
    }
    weights.key_down = matrix(attention + "kv_a_proj_with_mqa.weight", kept, H);
    weights.key_norm = vector(attention + "kv_a_layernorm.weight", latent.kv_rank);
    const std::int64_t up = latent.nope_width + latent.value_width;
    const at::Tensor both = matrix(attention + "kv_b_proj.weight", heads * up, latent.kv_rank)
                                .view({heads, up, latent.kv_rank});
    weights.key_up = both.slice(1, 0, latent.nope_width).transpose(1, 2).contiguous();
    weights.value_up = both.slice(1, latent.nope_width).contiguous();
    weights.output = matrix(attention + "o_proj.weight", H, heads * latent.value_width);
    if (config_.attention_bias) {
      if (latent.query_rank > 0) {
        weights.query_down_bias = vector(attention + "q_a_proj.bias", latent.query_rank);
      }
      weights.key_down_bias = vector(attention + "kv_a_proj_with_mqa.bias", kept);
      weights.output_bias = vector(attention + "o_proj.bias", H);
    }
  }

  MlpWeights mlp(const std::string& prefix, std::int64_t width) {
    const std::int64_t H = config_.hidden_size;
    return {at::cat({matrix(prefix + "gate_proj.weight", width, H),
                     matrix(prefix + "up_proj.weight", width, H)}),
            matrix(prefix + "down_proj.weight", H, width)};
  }

  static std::vector<std::string> filled(const std::vector<std::string>& patterns,
                                         std::int64_t layer, std::int64_t expert = -1) {
    std::vector<std::string> names;
    for (const std::string& pattern : patterns) {
      names.push_back(fill_name(pattern, layer, expert));
    }
    return names;
  }

  /// The experts' matrices of one kind: fused in one tensor, or one an expert.
  void load_experts(std::int64_t layer, const std::vector<std::int32_t>& local,
                    LayerWeights& weights) {
    const TensorNames& names = family_.names;
    const auto E = config_.num_experts;
    const auto H = config_.hidden_size;
    const auto I = config_.expert_intermediate_size;
    weights.gate_up.resize(static_cast<std::size_t>(E));
    weights.down.resize(static_cast<std::size_t>(E));
    const auto is_local = [&](std::int64_t expert) {
      return std::binary_search(local.begin(), local.end(), static_cast<std::int32_t>(expert));
    };
    const std::string fused_gate_up = ledger_.existing(filled(names.fused_gate_up, layer));
    if (ledger_.has(fused_gate_up)) {
      values_.slices(ledger_, fused_gate_up, {E, 2 * I, H}, local, weights.gate_up, matrix_type_);
    } else {
      for (std::int64_t e = 0; e < E; ++e) {
        const std::string gate = ledger_.existing(filled(names.expert_gate, layer, e));
        const std::string up = ledger_.existing(filled(names.expert_up, layer, e));
        if (is_local(e)) {
          weights.gate_up[static_cast<std::size_t>(e)] =
              at::cat({matrix(gate, I, H), matrix(up, I, H)});
        } else {
          values_.check(ledger_, gate, {I, H});
          values_.check(ledger_, up, {I, H});
        }
      }
    }
    const std::string fused_down = ledger_.existing(filled(names.fused_down, layer));
    if (ledger_.has(fused_down)) {
      values_.slices(ledger_, fused_down, {E, H, I}, local, weights.down, matrix_type_);
      return;
    }
    for (std::int64_t e = 0; e < E; ++e) {
      const std::string down = ledger_.existing(filled(names.expert_down, layer, e));
      if (is_local(e)) {
        weights.down[static_cast<std::size_t>(e)] = matrix(down, H, I);
      } else {
        values_.check(ledger_, down, {H, I});
      }
    }
  }

  /// Layers for multi-token prediction stand behind the last one.
  void pass_over_extra_layers() {
    for (std::int64_t extra = 0; extra < config_.num_extra_layers; ++extra) {
      ledger_.pass_over_prefix("model.layers." + std::to_string(config_.num_layers + extra) + ".");
    }
  }

  TensorLedger ledger_;
  TensorValues values_;
  const ModelConfig& config_;
  const Family& family_;
  at::ScalarType matrix_type_;
};

}  // namespace

Weights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, const Family& family,
                     const LocalExperts& local_experts, kernels::DType matrix_type) {
  COTERIE_CHECK(static_cast<std::int64_t>(local_experts.size()) == config.num_layers,
                local_experts.size(), " lists of local experts");
  const bool bf16 = matrix_type == kernels::DType::kBfloat16;
  COTERIE_CHECK(bf16 || matrix_type == kernels::DType::kFloat32, "matrices are fp32 or bf16");
  const c10::InferenceMode no_gradients;
  return Loader(checkpoint, config, family, bf16 ? at::kBFloat16 : at::kFloat).load(local_experts);
}

kernels::ConstMatrixView view_of(const at::Tensor& matrix) {
  const bool bf16 = matrix.scalar_type() == at::kBFloat16;
  COTERIE_CHECK(matrix.dim() == 2 && matrix.stride(1) == 1, "matrix of ", matrix.dim(), " axes");
  COTERIE_CHECK(bf16 || matrix.scalar_type() == at::kFloat, "matrix type");
  return {matrix.const_data_ptr(), matrix.size(0), matrix.size(1), matrix.stride(0),
          bf16 ? kernels::DType::kBfloat16 : kernels::DType::kFloat32};
}

kernels::MatrixView mutable_view_of(at::Tensor& matrix) {
  const kernels::ConstMatrixView view = view_of(matrix);
  return {matrix.mutable_data_ptr(), view.rows, view.columns, view.row_stride, view.type};
}

}  // namespace coterie::models
