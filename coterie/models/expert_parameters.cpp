// SPDX-License-Identifier: Apache-2.0
// Which checkpoint tensors the gate and the experts of a layer are.
#include "coterie/base/error.hpp"
#include "coterie/models/trainable_moe.hpp"

namespace coterie::models {
namespace {

/// How a family calls an expert's matrices.
struct MatrixNames {
  std::string block;  ///< "mlp.", or Mixtral's "block_sparse_moe."
  std::string gate;
  std::string up;
  std::string down;
};

MatrixNames matrix_names(const TrainableConfig& config) {
  if (config.model.family == "mixtral") {
    return {"block_sparse_moe.", "w1.weight", "w3.weight", "w2.weight"};
  }
  return {"mlp.", "gate_proj.weight", "up_proj.weight", "down_proj.weight"};
}

/// Builds the pieces of one stacked tensor.
class Stack {
 public:
  Stack(std::string base, const ExpertPart& part) : base_(std::move(base)), part_(part) {}

  /// Each expert's matrix `name` of `shape`, cut along `axis`, at the local row `row`.
  void add(const std::string& name, const std::vector<std::int64_t>& shape, std::size_t axis,
           std::int64_t row) {
    for (std::size_t slot = 0; slot < part_.experts.size(); ++slot) {
      ParameterPiece piece =
          whole_piece(base_ + std::to_string(part_.experts[slot]) + "." + name, shape);
      if (axis < shape.size()) {
        piece.start[axis] = part_.width.begin;
        piece.size[axis] = part_.width.size();
      }
      piece.slot = static_cast<std::int64_t>(slot);
      piece.row = row;
      pieces.push_back(std::move(piece));
    }
  }

  std::vector<ParameterPiece> pieces;

 private:
  std::string base_;
  const ExpertPart& part_;
};

constexpr std::size_t kWhole = 9;  // no axis: not cut

}  // namespace

std::string block_prefix(const TrainableConfig& config, std::int64_t layer) {
  return (config.is_gpt2() ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
}

void file_gate(ParameterStore& store, std::int64_t layer, const torch::nn::Module& gate) {
  const std::string block = block_prefix(store.config, layer);
  const std::string stored = block + matrix_names(store.config).block + "gate.";
  for (const auto& item : gate.named_parameters()) {
    TrainableParameter parameter;
    parameter.name = block + "mlp.gate." + item.key();
    parameter.value = item.value();
    parameter.kind = parallel::ParameterKind::kGate;
    parameter.pieces = {whole_piece(stored + item.key(), item.value().sizes())};
    parameter.has_decay = item.value().dim() > 1;
    parameter.is_router = true;
    parameter.deviation = store.config.initializer_range;
    // Scalars and vectors (X-MoE's temperature, SoftMoE's scale) keep what the gate gave them.
    parameter.beginning = item.value().dim() > 1 ? Beginning::kNormal : Beginning::kGiven;
    store.parameters.push_back(std::move(parameter));
  }
}

void file_experts(ParameterStore& store, std::int64_t layer, const ExpertPart& part,
                  const torch::nn::Module& experts) {
  const ModelConfig& model = store.config.model;
  const std::int64_t H = model.hidden_size;
  const std::int64_t I = model.expert_intermediate_size;
  const std::string block = block_prefix(store.config, layer);
  const MatrixNames names = matrix_names(store.config);
  for (const auto& item : experts.named_parameters()) {
    Stack stack(block + names.block + "experts.", part);
    if (item.key() == "gate_up_proj") {
      stack.add(names.gate, {I, H}, 0, 0);
      stack.add(names.up, {I, H}, 0, part.width.size());
    } else if (item.key() == "down_proj") {
      stack.add(names.down, {H, I}, 1, 0);
    } else if (item.key() == "up_proj") {
      stack.add(names.up, {I, H}, 0, 0);
    } else if (item.key() == "up_bias") {
      stack.add("up_proj.bias", {I}, 0, 0);
    } else if (item.key() == "down_bias") {
      stack.add("down_proj.bias", {H}, kWhole, 0);
    } else {
      fail(ErrorCode::kInternal, block, ": experts have an unknown parameter ", item.key());
    }
    TrainableParameter parameter;
    parameter.name = block + "mlp.experts." + item.key();
    parameter.value = item.value();
    parameter.kind = item.key() == "down_bias" ? parallel::ParameterKind::kExpertBias
                                               : parallel::ParameterKind::kExpert;
    parameter.pieces = std::move(stack.pieces);
    const bool is_bias = item.key().ends_with("_bias");
    parameter.has_decay = !is_bias;
    parameter.beginning = is_bias ? Beginning::kZeros : Beginning::kNormal;
    parameter.deviation = store.config.initializer_range;
    store.parameters.push_back(std::move(parameter));
  }
}

}  // namespace coterie::models
