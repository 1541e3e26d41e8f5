// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "coterie/models/checkpoint.hpp"
#include "coterie/models/family.hpp"
#include "coterie/models/model_config.hpp"
#include "coterie/run/kernels/kernels.hpp"

namespace coterie::models {

/// A dense SwiGLU MLP. Matrices as in LayerWeights; undefined where there is none.
struct MlpWeights {
  at::Tensor gate_up;  // [2 I, H], gate rows first
  at::Tensor down;     // [H, I]

  [[nodiscard]] bool exists() const { return gate_up.defined(); }
};

/// Weights of one decoder layer. Matrices are contiguous, fp32 or bf16 as asked for; vectors and
/// the router are fp32. What the checkpoint holds in that form is not copied.
struct LayerWeights {
  at::Tensor attention_norm;  // [H]
  at::Tensor moe_norm;        // [H]
  at::Tensor query;           // [heads * head_dim, H]
  at::Tensor key;             // [kv heads * head_dim, H]
  at::Tensor value;           // [kv heads * head_dim, H]
  at::Tensor output;          // [H, heads * head_dim]
  at::Tensor query_bias;      // [heads * head_dim], undefined without bias; so are the others
  at::Tensor key_bias;
  at::Tensor value_bias;
  at::Tensor output_bias;
  at::Tensor query_norm;  // [heads * head_dim] or [head_dim], undefined without qk-norm;
                          // latent: [query rank]
  at::Tensor key_norm;    // [kv heads * head_dim] or [head_dim]; latent: [kv rank]
  // Latent attention. `query` is [heads * (nope + rope), query rank or H]; key, value undefined.
  at::Tensor query_down;       // [query rank, H], undefined without query rank
  at::Tensor query_down_bias;  // [query rank]
  at::Tensor key_down;         // [kv rank + rope, H]
  at::Tensor key_down_bias;    // [kv rank + rope]
  at::Tensor key_up;           // [heads, kv rank, nope]: transposed, as absorbed queries need it
  at::Tensor value_up;         // [heads, value width, kv rank]

  MlpWeights dense;        // of a layer that is no mixture; what follows is undefined there
  MlpWeights shared;       // shared experts, together
  at::Tensor shared_gate;  // [1, H] fp32, undefined without

  at::Tensor router;                // [E, H] fp32
  at::Tensor router_bias;           // [E] fp32, undefined without correction bias
  std::vector<at::Tensor> gate_up;  // [E] of [2I, H], gate rows first; undefined if not local
  std::vector<at::Tensor> down;     // [E] of [H, I]; undefined if not local
};

struct Weights {
  at::Tensor embedding;   // [V, H]
  at::Tensor final_norm;  // [H] fp32
  at::Tensor head;        // [V, H]; the embedding itself if tied
  std::vector<LayerWeights> layers;
};

/// Which experts of each layer this process holds: [layers][local experts], ascending.
using LocalExperts = std::vector<std::vector<std::int32_t>>;

/// Reads the weights of a model. All names and shapes are checked, also of experts that live
/// elsewhere, whose bytes are not touched. The checkpoint must outlive the weights.
Weights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, const Family& family,
                     const LocalExperts& local_experts, kernels::DType matrix_type);

/// The matrix (contiguous, fp32 or bf16) as the kernels see it.
kernels::ConstMatrixView view_of(const at::Tensor& matrix);
kernels::MatrixView mutable_view_of(at::Tensor& matrix);

}  // namespace coterie::models
