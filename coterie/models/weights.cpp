// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/weights.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/models/tensor_ledger.hpp"

namespace coterie::models {
namespace {

at::ScalarType scalar_type_of(ElementType type) {
  switch (type) {
    case ElementType::kF32: return at::kFloat;
    case ElementType::kBF16: return at::kBFloat16;
    case ElementType::kF16: return at::kHalf;
    default: fail(ErrorCode::kInternal, "no matrix type: ", name_of(type));
  }
}

/// The tensor where it lies in the file.
at::Tensor mapped(const Tensor& tensor) {
  void* data = const_cast<std::byte*>(tensor.bytes().data());  // mapped read-only, never written
  return at::from_blob(data, tensor.shape(), scalar_type_of(tensor.type()));
}

/// In the type asked for: the mapped bytes themselves if they have it, else a copy.
at::Tensor converted(const Tensor& tensor, at::ScalarType type) {
  at::Tensor result = mapped(tensor);
  if (result.scalar_type() != type) {
    result = result.to(type);
    tensor.release();
  }
  return result;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, const Family& family,
         at::ScalarType matrix_type)
      : ledger_(checkpoint), config_(config), family_(family), matrix_type_(matrix_type) {}

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
      load_experts(layer, local_experts[static_cast<std::size_t>(layer)], weights.layers.back());
    }
    ledger_.finish();
    return weights;
  }

 private:
  at::Tensor vector(const std::string& name, std::int64_t size) {
    return converted(ledger_.take(name, {size}), at::kFloat);
  }
  at::Tensor matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    return converted(ledger_.take(name, {rows, columns}), matrix_type_);
  }

  /// Some writers store the tied head too: fine if it is the same.
  at::Tensor tied_head(const at::Tensor& embedding) {
    const std::string& name = family_.names.head;
    if (ledger_.has(name)) {
      const Tensor& head = ledger_.take(name, {config_.vocab_size, config_.hidden_size});
      COTERIE_REQUIRE(at::equal(mapped(head).to(matrix_type_), embedding), head.place(),
                      ": differs from ", family_.names.embedding,
                      ", but config.json says tie_word_embeddings");
    }
    return embedding;
  }

  LayerWeights load_layer(std::int64_t layer) {
    const TensorNames& names = family_.names;
    const std::int64_t H = config_.hidden_size;
    const std::int64_t wide = config_.num_heads * config_.head_dim;
    const std::int64_t narrow = config_.num_kv_heads * config_.head_dim;
    const std::string attention = fill_name(names.attention, layer);
    LayerWeights weights;
    weights.attention_norm = vector(fill_name(names.attention_norm, layer), H);
    weights.moe_norm = vector(fill_name(names.moe_norm, layer), H);
    weights.query = matrix(attention + "q_proj.weight", wide, H);
    weights.key = matrix(attention + "k_proj.weight", narrow, H);
    weights.value = matrix(attention + "v_proj.weight", narrow, H);
    weights.output = matrix(attention + "o_proj.weight", H, wide);
    if (config_.attention_bias) {
      weights.query_bias = vector(attention + "q_proj.bias", wide);
      weights.key_bias = vector(attention + "k_proj.bias", narrow);
      weights.value_bias = vector(attention + "v_proj.bias", narrow);
      weights.output_bias = vector(attention + "o_proj.bias", H);
    }
    if (config_.qk_norm == QkNorm::kWholeProjection) {
      weights.query_norm = vector(attention + "q_norm.weight", wide);
      weights.key_norm = vector(attention + "k_norm.weight", narrow);
    }
    const Tensor& router =
        ledger_.take(ledger_.existing(filled(names.router, layer)), {config_.num_experts, H});
    weights.router = converted(router, at::kFloat);
    return weights;
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
      take_slices(ledger_.take(fused_gate_up, {E, 2 * I, H}), local, weights.gate_up);
    } else {
      for (std::int64_t e = 0; e < E; ++e) {
        const Tensor& gate =
            ledger_.take(ledger_.existing(filled(names.expert_gate, layer, e)), {I, H});
        const Tensor& up =
            ledger_.take(ledger_.existing(filled(names.expert_up, layer, e)), {I, H});
        if (is_local(e)) {
          weights.gate_up[static_cast<std::size_t>(e)] =
              at::cat({mapped(gate).to(matrix_type_), mapped(up).to(matrix_type_)});
          gate.release();
          up.release();
        }
      }
    }
    const std::string fused_down = ledger_.existing(filled(names.fused_down, layer));
    if (ledger_.has(fused_down)) {
      take_slices(ledger_.take(fused_down, {E, H, I}), local, weights.down);
      return;
    }
    for (std::int64_t e = 0; e < E; ++e) {
      const Tensor& down =
          ledger_.take(ledger_.existing(filled(names.expert_down, layer, e)), {H, I});
      if (is_local(e)) {
        weights.down[static_cast<std::size_t>(e)] = converted(down, matrix_type_);
      }
    }
  }

  void take_slices(const Tensor& fused, const std::vector<std::int32_t>& local,
                   std::vector<at::Tensor>& matrices) const {
    const at::Tensor all = mapped(fused);
    for (const std::int32_t expert : local) {
      matrices[static_cast<std::size_t>(expert)] = all[expert].to(matrix_type_);
    }
  }

  TensorLedger ledger_;
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
