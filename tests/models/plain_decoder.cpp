// SPDX-License-Identifier: Apache-2.0
#include "tests/models/plain_decoder.hpp"

#include <cmath>
#include <limits>

namespace coterie::models {
namespace {

class PlainDecoder {
 public:
  PlainDecoder(const TrainableConfig& config, const WholeTensors& weights)
      : config_(config), model_(config.model), weights_(weights) {}

  /// Adds one sequence's losses.
  void add(const std::vector<std::int64_t>& tokens, const gates::BalanceOptions& balance) {
    balance_ = balance;
    const auto T = static_cast<std::int64_t>(tokens.size());
    const at::Tensor ids = at::tensor(tokens, at::kLong);
    at::Tensor h = get(config_.is_gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight")
                       .index_select(0, ids);
    if (config_.is_gpt2()) {
      h = h + get("transformer.wpe.weight").slice(0, 0, T);
    }
    for (std::int64_t layer = 0; layer < model_.num_layers; ++layer) {
      base_ =
          (config_.is_gpt2() ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
      h = h + attention(norm(h, config_.is_gpt2() ? "ln_1" : "input_layernorm"));
      const at::Tensor x = norm(h, config_.is_gpt2() ? "ln_2" : "post_attention_layernorm");
      h = h + (config_.is_moe_layer(layer) ? experts(x) : dense(x));
    }
    base_ = config_.is_gpt2() ? "transformer." : "model.";
    h = norm(h, config_.is_gpt2() ? "ln_f" : "norm");
    const at::Tensor head = model_.tied_head ? get(config_.is_gpt2() ? "transformer.wte.weight"
                                                                     : "model.embed_tokens.weight")
                                             : get("lm_head.weight");
    const at::Tensor logs = at::log_softmax(at::matmul(h, head.t()), 1);
    for (std::int64_t t = 0; t + 1 < T; ++t) {
      loss_ = loss_ - logs[t][tokens[static_cast<std::size_t>(t + 1)]];
      ++num_targets_;
    }
    ++num_sequences_;
  }

  at::Tensor total() {
    return loss_ / std::max<double>(1, num_targets_) + aux_ / std::max<double>(1, num_sequences_);
  }

 private:
  const at::Tensor& get(const std::string& name) const { return weights_.at(name); }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor& weight = get(base_ + name + ".weight");
    if (config_.is_gpt2()) {
      const at::Tensor centred = x - x.mean(-1, true);
      return centred / at::sqrt(centred.pow(2).mean(-1, true) + model_.rms_norm_eps) * weight +
             get(base_ + name + ".bias");
    }
    return rms(x, weight);
  }
  at::Tensor rms(const at::Tensor& x, const at::Tensor& weight) const {
    return x / at::sqrt(x.pow(2).mean(-1, true) + model_.rms_norm_eps) * weight;
  }

  at::Tensor turned(const at::Tensor& x) const {  // one head [T, d]; frequencies as fp32, as HF
    const std::int64_t d = model_.head_dim;
    const at::Tensor power = at::arange(0, d, 2, at::kFloat) / static_cast<double>(d);
    const at::Tensor angles = at::arange(x.size(0), at::kFloat).unsqueeze(1) *
                              (1.0 / at::pow(model_.rope_theta, power)).unsqueeze(0);
    const at::Tensor c = angles.cos().to(at::kDouble);
    const at::Tensor s = angles.sin().to(at::kDouble);
    const at::Tensor a = x.slice(1, 0, d / 2);
    const at::Tensor b = x.slice(1, d / 2);
    return at::cat({a * c - b * s, b * c + a * s}, 1);
  }

  at::Tensor attention(const at::Tensor& x) const {
    const std::int64_t d = model_.head_dim;
    at::Tensor q;
    at::Tensor k;
    at::Tensor v;
    if (config_.is_gpt2()) {
      const auto all =
          (at::matmul(x, get(base_ + "attn.c_attn.weight")) + get(base_ + "attn.c_attn.bias"))
              .chunk(3, 1);
      q = all[0];
      k = all[1];
      v = all[2];
    } else {
      const std::string at_ = base_ + "self_attn.";
      q = at::matmul(x, get(at_ + "q_proj.weight").t());
      k = at::matmul(x, get(at_ + "k_proj.weight").t());
      v = at::matmul(x, get(at_ + "v_proj.weight").t());
      if (model_.qk_norm == QkNorm::kWholeProjection) {
        q = rms(q, get(at_ + "q_norm.weight"));
        k = rms(k, get(at_ + "k_norm.weight"));
      }
      if (model_.clip_qkv) {
        q = q.clamp(-*model_.clip_qkv, *model_.clip_qkv);
        k = k.clamp(-*model_.clip_qkv, *model_.clip_qkv);
        v = v.clamp(-*model_.clip_qkv, *model_.clip_qkv);
      }
    }
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < model_.num_heads; ++head) {
      const std::int64_t kv = head / (model_.num_heads / model_.num_kv_heads);
      at::Tensor qh = q.slice(1, head * d, (head + 1) * d);
      at::Tensor kh = k.slice(1, kv * d, (kv + 1) * d);
      if (model_.qk_norm == QkNorm::kEachHead) {
        qh = rms(qh, get(base_ + "self_attn.q_norm.weight"));
        kh = rms(kh, get(base_ + "self_attn.k_norm.weight"));
      }
      if (!config_.is_gpt2()) {
        qh = turned(qh);
        kh = turned(kh);
      }
      heads.push_back(one_head(qh, kh, v.slice(1, kv * d, (kv + 1) * d)));
    }
    const at::Tensor mixed = at::cat(heads, 1);
    return config_.is_gpt2() ? at::matmul(mixed, get(base_ + "attn.c_proj.weight")) +
                                   get(base_ + "attn.c_proj.bias")
                             : at::matmul(mixed, get(base_ + "self_attn.o_proj.weight").t());
  }

  at::Tensor one_head(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const {
    const std::int64_t T = q.size(0);
    std::vector<at::Tensor> rows;
    for (std::int64_t t = 0; t < T; ++t) {
      const std::int64_t first =
          model_.sliding_window ? std::max<std::int64_t>(0, t + 1 - *model_.sliding_window) : 0;
      const at::Tensor scores = at::matmul(k.slice(0, first, t + 1), q[t]) /
                                std::sqrt(static_cast<double>(model_.head_dim));
      rows.push_back(at::matmul(at::softmax(scores, 0), v.slice(0, first, t + 1)));
    }
    return rows.empty() ? v : at::stack(rows);
  }

  static at::Tensor gelu(const at::Tensor& x) {
    return 0.5 * x * (1 + at::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3))));
  }

  at::Tensor dense(const at::Tensor& x) const {
    const at::Tensor hidden =
        gelu(at::matmul(x, get(base_ + "mlp.c_fc.weight")) + get(base_ + "mlp.c_fc.bias"));
    return at::matmul(hidden, get(base_ + "mlp.c_proj.weight")) + get(base_ + "mlp.c_proj.bias");
  }

  at::Tensor expert(std::int64_t e, const at::Tensor& x) const {
    const bool mixtral = model_.family == "mixtral";
    const std::string base =
        base_ + (mixtral ? "block_sparse_moe" : "mlp") + ".experts." + std::to_string(e) + ".";
    if (config_.is_gpt2()) {
      const at::Tensor hidden =
          gelu(at::matmul(get(base + "up_proj.weight"), x) + get(base + "up_proj.bias"));
      return at::matmul(get(base + "down_proj.weight"), hidden) + get(base + "down_proj.bias");
    }
    const at::Tensor gate = at::matmul(get(base + (mixtral ? "w1" : "gate_proj") + ".weight"), x);
    const at::Tensor up = at::matmul(get(base + (mixtral ? "w3" : "up_proj") + ".weight"), x);
    return at::matmul(get(base + (mixtral ? "w2" : "down_proj") + ".weight"),
                      gate * at::sigmoid(gate) * up);
  }

  at::Tensor experts(const at::Tensor& x) {
    const std::int64_t T = x.size(0);
    const std::int64_t E = model_.num_experts;
    const std::string router =
        base_ + (model_.family == "mixtral" ? "block_sparse_moe" : "mlp") + ".gate.weight";
    const at::Tensor logits = at::matmul(x, get(router).t());
    const at::Tensor scores = at::softmax(logits, 1);
    const auto [best, ids] = scores.topk(model_.top_k, 1);
    const at::Tensor weights = model_.renormalise ? best / best.sum(1, true) : best;
    at::Tensor counts = at::zeros({E}, at::kDouble);
    std::vector<at::Tensor> rows;
    for (std::int64_t t = 0; t < T; ++t) {
      at::Tensor y = at::zeros({x.size(1)}, at::kDouble);
      for (std::int64_t i = 0; i < model_.top_k; ++i) {
        const auto e = ids[t][i].item<std::int64_t>();
        counts[e] += 1;
        y = y + weights[t][i] * expert(e, x[t]);
      }
      rows.push_back(y);
    }
    const auto n = static_cast<double>(T);
    aux_ = aux_ +
           balance_.load_balance * static_cast<double>(E) * (counts / n * scores.mean(0)).sum() +
           balance_.z_loss * at::logsumexp(logits, 1).pow(2).mean();
    return at::stack(rows);
  }

  const TrainableConfig& config_;
  const ModelConfig& model_;
  const WholeTensors& weights_;
  gates::BalanceOptions balance_;
  std::string base_;
  at::Tensor loss_ = at::zeros({}, at::kDouble);
  at::Tensor aux_ = at::zeros({}, at::kDouble);
  double num_targets_ = 0;
  double num_sequences_ = 0;
};

}  // namespace

at::Tensor plain_loss(const TrainableConfig& config, const WholeTensors& weights,
                      const std::vector<std::vector<std::int64_t>>& sequences,
                      const gates::BalanceOptions& balance) {
  PlainDecoder decoder(config, weights);
  for (const auto& sequence : sequences) {
    if (!sequence.empty()) {
      decoder.add(sequence, balance);
    }
  }
  return decoder.total();
}

}  // namespace coterie::models
