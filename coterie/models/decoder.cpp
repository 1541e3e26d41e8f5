// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/decoder.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "coterie/base/error.hpp"
#include "coterie/models/attention.hpp"
#include "coterie/models/family.hpp"
#include "coterie/models/model_placement.hpp"
#include "coterie/models/moe_block.hpp"
#include "coterie/models/row_math.hpp"
#include "coterie/models/weights.hpp"

namespace coterie::models {
namespace {

/// ATen runs on the calling thread alone: the number of threads must not change its sums, and
/// parallel work is shared out by sequence.
class OneAtenThread {
 public:
  OneAtenThread() : before_(at::get_num_threads()) {
    if (before_ != 1) {
      at::set_num_threads(1);
    }
  }
  ~OneAtenThread() {
    if (before_ != 1) {
      at::set_num_threads(before_);
    }
  }
  OneAtenThread(const OneAtenThread&) = delete;
  OneAtenThread& operator=(const OneAtenThread&) = delete;

 private:
  int before_;
};

std::int64_t past_of(const SequencePart& part) {
  return part.cache != nullptr ? part.cache->length() : 0;
}

void check_parts(std::span<const SequencePart> parts, const ModelConfig& config) {
  std::set<const KeyValueCache*> caches;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const auto past = past_of(parts[s]);
    const auto length = past + std::ssize(parts[s].tokens);
    COTERIE_REQUIRE(length <= config.max_positions, "sequence ", s, " has ", length,
                    " tokens, the model allows ", config.max_positions,
                    " (max_position_embeddings)");
    COTERIE_REQUIRE(parts[s].cache == nullptr || caches.insert(parts[s].cache).second, "sequence ",
                    s, ": its cache is another sequence's too");
    for (std::size_t t = 0; t < parts[s].tokens.size(); ++t) {
      COTERIE_REQUIRE(parts[s].tokens[t] >= 0 && parts[s].tokens[t] < config.vocab_size,
                      "sequence ", s, ", position ", past + static_cast<std::int64_t>(t),
                      ": token id ", parts[s].tokens[t], " is outside [0, ", config.vocab_size,
                      ")");
    }
  }
}

std::vector<SequencePart> parts_of(Batch batch) {
  std::vector<SequencePart> parts;
  for (const auto& sequence : batch) {
    parts.push_back({sequence, nullptr});
  }
  return parts;
}

/// What does not fit together is said before weights are read.
void check_pruning(const DecoderOptions& options) {
  if (!options.pruning) {
    return;
  }
  COTERIE_REQUIRE(options.placement.has_value(), "pruning needs a placement");
  COTERIE_REQUIRE(options.moe != MoePath::kReference, "the reference path does not prune");
  const bool by_similarity =
      options.pruning->options.replacement == pruning::Replacement::kSimilarity;
  COTERIE_REQUIRE(!by_similarity || options.similarity.has_value(),
                  "the pruning policy replaces experts by similarity: give a similarity file");
  pruning::check_same_model(*options.pruning, *options.placement,
                            options.similarity ? &*options.similarity : nullptr);
}

/// The placement of each MoE layer; none if all experts are on one device.
std::vector<placement::LayerPlacement> placements_of(const DecoderOptions& options,
                                                     const ModelConfig& config,
                                                     const std::string& fingerprint) {
  check_pruning(options);
  COTERIE_REQUIRE(options.communicator == nullptr || options.placement.has_value(),
                  "a run on several ranks needs a placement");
  COTERIE_REQUIRE(!options.placement.has_value() || options.moe != MoePath::kReference,
                  "the reference path computes all experts in one process: no placement");
  return options.placement.has_value() ? layer_placements(*options.placement, config, fingerprint)
                                       : std::vector<placement::LayerPlacement>{};
}

/// Which experts of each layer this process reads: its own device's, or all.
LocalExperts local_experts_of(const DecoderOptions& options, const ModelConfig& config,
                              const std::vector<placement::LayerPlacement>& placements) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(config.num_experts));
  std::iota(all.begin(), all.end(), 0);
  LocalExperts local(static_cast<std::size_t>(config.num_layers), all);
  if (options.communicator == nullptr) {
    return local;
  }
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const int num_ranks = options.communicator->size();
    COTERIE_REQUIRE(placements[i].num_devices() == num_ranks, "the placement is for ",
                    placements[i].num_devices(), " devices, the run has ", num_ranks, " ranks");
    local[static_cast<std::size_t>(config.moe_layers[i])] =
        placements[i].experts_of_device[static_cast<std::size_t>(options.communicator->rank())];
  }
  return local;
}

}  // namespace

class Decoder::State {
 public:
  State(const std::filesystem::path& model, const DecoderOptions& options)
      : options_(options),
        config_(read_model_config(model)),
        checkpoint_(model),
        fingerprint_(model_fingerprint(checkpoint_, config_)),
        placements_(placements_of(options, config_, fingerprint_)),
        weights_(load_weights(checkpoint_, config_, family_named(config_.family, model.string()),
                              local_experts_of(options, config_, placements_),
                              options.weight_type)),
        attention_(make_attention(config_, options.moe == MoePath::kReference)),
        block_(options.moe == MoePath::kReference
                   ? make_reference_block(config_, weights_)
                   : make_layer_block(config_, weights_, options_, placements_)) {
    record_.keep_logits = options_.keep_router_logits;
  }

  /// Hidden states [T, H] after the last norm.
  at::Tensor hidden_states(std::span<const SequencePart> parts, const RoutingHook& hook) {
    check_parts(parts, config_);
    set_offsets(parts);
    at::Tensor hidden = at::empty({offsets_.back(), config_.hidden_size}, at::kFloat);
    at::Tensor normed = at::empty_like(hidden);
    at::Tensor mixed = at::empty_like(hidden);
    each_sequence([&](std::size_t s, const kernels::Execution&) {
      const at::Tensor ids = at::tensor(parts[s].tokens, at::kInt);
      rows(hidden, s).copy_(weights_.embedding.index_select(0, ids));
    });
    std::int64_t moe_layer = 0;
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
      each_sequence([&](std::size_t s, const kernels::Execution& execution) {
        at::Tensor h = rows(hidden, s);
        LayerCache passing(attention_->cache_shape());
        LayerCache& cache = parts[s].cache != nullptr ? parts[s].cache->layer(layer) : passing;
        h.add_(attention_->forward(weights,
                                   rms_norm(h, weights.attention_norm, config_.rms_norm_eps),
                                   rotary_, cache, execution));
        rows(normed, s).copy_(rms_norm(h, weights.moe_norm, config_.rms_norm_eps));
      });
      if (weights.dense.exists()) {
        hidden.add_(apply_mlp(normed, weights.dense, options_.execution));
        continue;
      }
      block_->forward(moe_layer, normed, mixed, record_);
      ++moe_layer;
      if (weights.shared.exists()) {
        add_gated(mixed, apply_mlp(normed, weights.shared, options_.execution), normed,
                  weights.shared_gate, options_.execution);
      }
      hidden.add_(mixed);
      if (hook) {
        hook({static_cast<std::int32_t>(layer), static_cast<std::int32_t>(config_.top_k),
              record_.expert_ids, record_.weights, &record_,
              [&] { return output_products(weights, normed); }});
      }
    }
    each_sequence([&](std::size_t s, const kernels::Execution&) {
      rows(normed, s).copy_(rms_norm(rows(hidden, s), weights_.final_norm, config_.rms_norm_eps));
    });
    return normed;
  }

  /// Inner products of all experts' outputs for x [T, H], in blocks of tokens.
  [[nodiscard]] Matrix<double> output_products(const LayerWeights& weights,
                                               const at::Tensor& x) const {
    constexpr std::int64_t kTokens = 128;  // outputs of all experts at a time
    const std::int64_t num_experts = config_.num_experts;
    COTERIE_REQUIRE(options_.communicator == nullptr,
                    "outputs of all experts need a process that holds all experts");
    at::Tensor sum = at::zeros({num_experts, num_experts}, at::kDouble);
    for (std::int64_t begin = 0; begin < x.size(0); begin += kTokens) {
      const at::Tensor rows = x.slice(0, begin, std::min(x.size(0), begin + kTokens));
      std::vector<at::Tensor> outputs;
      for (std::size_t e = 0; e < static_cast<std::size_t>(num_experts); ++e) {
        const auto halves = at::linear(rows, weights.gate_up[e].to(at::kFloat)).chunk(2, 1);
        outputs.push_back(
            at::linear(at::silu(halves[0]) * halves[1], weights.down[e].to(at::kFloat))
                .flatten()
                .to(at::kDouble));
      }
      const at::Tensor all = at::stack(outputs);  // [E, tokens * H]
      sum.add_(at::mm(all, all.t()));
    }
    const auto size = static_cast<std::size_t>(num_experts);
    Matrix<double> products(size, size);
    std::copy_n(sum.const_data_ptr<double>(), size * size, products.values().begin());
    return products;
  }

  /// Logits [parts, V] of each part's last token.
  Matrix<float> extend(std::span<const SequencePart> parts, const RoutingHook& hook) {
    std::vector<std::int64_t> before;
    for (const SequencePart& part : parts) {
      COTERIE_REQUIRE(part.cache != nullptr && part.cache->num_layers() == config_.num_layers,
                      "extend: a part without a cache of this decoder");
      before.push_back(part.cache->length());
    }
    try {
      const at::Tensor hidden = hidden_states(parts, hook);
      return last_logits(hidden, parts.size());
    } catch (...) {
      for (std::size_t s = 0; s < parts.size(); ++s) {
        parts[s].cache->truncate(before[s]);
      }
      throw;
    }
  }

  [[nodiscard]] KeyValueCache make_cache() const {
    return {attention_->cache_shape(), config_.num_layers};
  }

  /// Logits [T, V] of one sequence of `hidden`, in blocks of rows.
  void head(const at::Tensor& hidden, at::Tensor& logits) const {
    kernels::linear(view_of(hidden), view_of(weights_.head), mutable_view_of(logits),
                    options_.execution);
  }

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const Checkpoint& checkpoint() const { return checkpoint_; }
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

 private:
  /// Rows of each part, and a rotary table that is long enough.
  void set_offsets(std::span<const SequencePart> parts) {
    offsets_.assign(1, 0);
    std::int64_t longest = 0;
    for (const SequencePart& part : parts) {
      const std::int64_t length = std::ssize(part.tokens);
      offsets_.push_back(offsets_.back() + length);
      longest = std::max(longest, past_of(part) + length);
    }
    if (!rotary_.cosines.defined() || rotary_.cosines.size(0) < longest) {
      rotary_ = make_decoder_rotary_table(config_, std::min(config_.max_positions, 2 * longest));
    }
  }

  Matrix<float> last_logits(const at::Tensor& hidden, std::size_t num_parts) const {
    std::vector<std::int64_t> last;
    std::vector<std::size_t> row_of;
    for (std::size_t s = 0; s < num_parts; ++s) {
      if (offsets_[s] < offsets_[s + 1]) {
        last.push_back(offsets_[s + 1] - 1);
        row_of.push_back(s);
      }
    }
    const at::Tensor rows = hidden.index_select(0, at::tensor(last, at::kLong));
    at::Tensor logits = at::empty({std::ssize(last), config_.vocab_size}, at::kFloat);
    head(rows, logits);
    Matrix<float> result(num_parts, static_cast<std::size_t>(config_.vocab_size));
    for (std::size_t i = 0; i < row_of.size(); ++i) {
      std::copy_n(
          logits.const_data_ptr<float>() + static_cast<std::int64_t>(i) * config_.vocab_size,
          config_.vocab_size, result.row(row_of[i]).begin());
    }
    return result;
  }

  [[nodiscard]] at::Tensor rows(const at::Tensor& all, std::size_t s) const {
    return all.slice(0, offsets_[s], offsets_[s + 1]);
  }

  /// body(sequence, execution) for each sequence that is not empty: sequences side by side if there
  /// are enough for all threads, else one after another with all threads inside.
  template <typename Body>
  void each_sequence(const Body& body) {
    const auto num_sequences = static_cast<std::int64_t>(offsets_.size()) - 1;
    kernels::Threads& pool = options_.execution.pool();
    const auto run = [&](std::int64_t s, const kernels::Execution& execution) {
      const auto index = static_cast<std::size_t>(s);
      if (offsets_[index] < offsets_[index + 1]) {
        const c10::InferenceMode no_gradients;
        if (at::get_num_threads() != 1) {
          at::set_num_threads(1);  // a worker of the pool keeps it: restoring here would race
        }
        body(index, execution);
      }
    };
    if (pool.size() > 1 && num_sequences >= pool.size()) {
      const kernels::Execution alone{nullptr, options_.execution.backend};
      pool.run(num_sequences, [&](std::int64_t s) { run(s, alone); });
    } else {
      for (std::int64_t s = 0; s < num_sequences; ++s) {
        run(s, options_.execution);
      }
    }
  }

  DecoderOptions options_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  std::string fingerprint_;
  std::vector<placement::LayerPlacement> placements_;  // [MoE layers] or empty
  Weights weights_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<MoeBlock> block_;
  RotaryTable rotary_;
  layer::RoutingRecord record_;
  std::vector<std::int64_t> offsets_;  // [sequences + 1] rows of each sequence
};

Decoder::Decoder(const std::filesystem::path& model, const DecoderOptions& options)
    : state_(std::make_unique<State>(model, options)) {}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

const ModelConfig& Decoder::config() const {
  return state_->config();
}
const Checkpoint& Decoder::checkpoint() const {
  return state_->checkpoint();
}
const std::string& Decoder::fingerprint() const {
  return state_->fingerprint();
}

Matrix<float> Decoder::logits(Batch batch, const RoutingHook& hook) {
  const c10::InferenceMode no_gradients;
  const OneAtenThread one;
  const at::Tensor hidden = state_->hidden_states(parts_of(batch), hook);
  Matrix<float> result(static_cast<std::size_t>(hidden.size(0)),
                       static_cast<std::size_t>(config().vocab_size));
  at::Tensor out = at::from_blob(result.values().data(), {hidden.size(0), config().vocab_size});
  state_->head(hidden, out);
  return result;
}

std::vector<double> Decoder::losses(Batch batch, const RoutingHook& hook) {
  constexpr std::int64_t kRows = 256;  // logits at a time
  const c10::InferenceMode no_gradients;
  const OneAtenThread one;
  const at::Tensor hidden = state_->hidden_states(parts_of(batch), hook);
  std::vector<double> losses(static_cast<std::size_t>(hidden.size(0)), 0.0);
  at::Tensor block = at::empty({kRows, config().vocab_size}, at::kFloat);
  std::int64_t first = 0;
  for (const auto& sequence : batch) {
    const auto length = static_cast<std::int64_t>(sequence.size());
    for (std::int64_t begin = 0; begin + 1 < length; begin += kRows) {
      const std::int64_t end = std::min(length - 1, begin + kRows);
      at::Tensor logits = block.slice(0, 0, end - begin);
      state_->head(hidden.slice(0, first + begin, first + end), logits);
      const at::Tensor shares = at::log_softmax(logits.to(at::kDouble), 1);
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int32_t next = sequence[static_cast<std::size_t>(t + 1)];
        losses[static_cast<std::size_t>(first + t + 1)] =
            -shares.const_data_ptr<double>()[(t - begin) * config().vocab_size + next];
      }
    }
    first += length;
  }
  return losses;
}

KeyValueCache Decoder::make_cache() const {
  const c10::InferenceMode no_gradients;
  return state_->make_cache();
}

Matrix<float> Decoder::extend(std::span<const SequencePart> parts, const RoutingHook& hook) {
  const c10::InferenceMode no_gradients;
  const OneAtenThread one;
  return state_->extend(parts, hook);
}

void Decoder::route(Batch batch, const RoutingHook& hook) {
  const c10::InferenceMode no_gradients;
  const OneAtenThread one;
  state_->hidden_states(parts_of(batch), hook);
}

}  // namespace coterie::models
