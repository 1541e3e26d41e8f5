// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/matrix.hpp"
#include "coterie/models/checkpoint.hpp"
#include "coterie/models/key_value_cache.hpp"
#include "coterie/models/model_config.hpp"
#include "coterie/plan/placement/placement.hpp"
#include "coterie/plan/pruning/pruning.hpp"
#include "coterie/run/kernels/kernels.hpp"
#include "coterie/run/layer/layer.hpp"

namespace coterie::models {

/// What computes the MoE layers.
enum class MoePath : std::uint8_t {
  kLayer,       ///< the MoE layer: our kernels and exchange
  kPlainLoops,  ///< the MoE layer's plain loops: the same bits, slowly; no communicator
  kReference,   ///< plain ATen, one expert after another, as transformers does; no placement
};

struct DecoderOptions {
  /// fp32: all matrices are converted to fp32. bf16: matrices are kept as (or rounded to) bf16,
  /// which halves memory. Activations, norms, routers and sums are fp32 in both cases.
  kernels::DType weight_type = kernels::DType::kFloat32;
  MoePath moe = MoePath::kLayer;
  kernels::Execution execution;  ///< threads and kernels; the pool must outlive the decoder
  exchange::ExchangeOptions exchange;
  /// Where experts live; nothing: all on one device. With a communicator, rank r is device r and
  /// reads the experts of that device alone; without one, this process computes what all devices
  /// would, in the same order, to the last bit.
  std::optional<placement::Placement> placement;
  comm::Communicator* communicator = nullptr;  ///< must outlive the decoder
  /// Limits tokens to few devices of `placement`, which it then needs; kLayer only.
  std::optional<pruning::Policy> pruning;
  /// For a policy that replaces experts by similarity.
  std::optional<pruning::ModelSimilarity> similarity;
  bool keep_router_logits = false;  ///< LayerRouting::record holds the logits too (kLayer)
};

/// A batch: token ids, one list a sequence. Lengths may differ and be 0.
using Batch = std::span<const std::vector<std::int32_t>>;

/// The next tokens of one sequence, whose tokens before are in `cache`.
struct SequencePart {
  std::span<const std::int32_t> tokens;  ///< may be none
  KeyValueCache* cache = nullptr;        ///< of this decoder, each in one part only
};

/// What tokens of a batch chose in one MoE layer, sequences one after another.
struct LayerRouting {
  std::int32_t layer = 0;  ///< its number in the model
  std::int32_t top_k = 0;
  std::span<const std::int32_t> ids;  ///< [T, top_k], descending weight; -1: none
  std::span<const float> weights;     ///< [T, top_k]
  /// All that the layer recorded: devices, predicted traffic, rows received. kReference fills only
  /// ids and weights.
  const layer::RoutingRecord* record = nullptr;
  /// Computes what every expert would give for every token, chosen or not, and returns the inner
  /// products [E, E] of these outputs, summed over the tokens of the batch in double: what
  /// pruning::SimilarityProfile::add_products takes. Costs E / top_k times the layer. All experts
  /// must be in this process (kBadInput). To be called during the hook.
  std::function<Matrix<double>()> output_products = {};
};
/// Called once a MoE layer, in ascending order, during a forward pass. The spans end with the call.
using RoutingHook = std::function<void(const LayerRouting&)>;

/// A mixture-of-experts decoder for inference. Attention is computed one sequence at a time, MoE
/// layers for all tokens of the batch together, without padding; a token's logits are the same bits
/// whether its sequence runs alone or in any batch, whole or in chunks of any size by extend(),
/// with any number of threads and on any rank (MoePath::kLayer and kPlainLoops).
///
/// With a communicator all ranks must make the same calls in the same order, each with its own
/// sequences (none is fine). Errors: kBadInput for token ids out of range and sequences longer than
/// the model allows (naming sequence, position and value) before anything is computed, and for NaN
/// in a router (naming layer and token). Not thread-safe.
class Decoder {
 public:
  /// Opens and checks the model; kBadInput, kUnsupported, kIo name the file and tensor.
  explicit Decoder(const std::filesystem::path& model, const DecoderOptions& options = {});
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder();

  [[nodiscard]] const ModelConfig& config() const;
  [[nodiscard]] const Checkpoint& checkpoint() const;
  /// See model_fingerprint().
  [[nodiscard]] const std::string& fingerprint() const;

  /// [T, vocab_size] logits.
  Matrix<float> logits(Batch batch, const RoutingHook& hook = {});
  /// [T] -log p(token | tokens before it in its sequence), natural logarithm; 0 for first tokens.
  std::vector<double> losses(Batch batch, const RoutingHook& hook = {});
  /// An empty cache for one sequence. It may outlive calls, not the decoder's config.
  [[nodiscard]] KeyValueCache make_cache() const;
  /// Computes the next tokens of some sequences together (prompts, chunks of prompts and single
  /// tokens may mix) and adds them to their caches. Returns [parts, vocab_size]: the logits of each
  /// part's last token; a row of zeros for a part without tokens. If it throws, the caches hold
  /// what they held before. kBadInput also for a cache given twice.
  Matrix<float> extend(std::span<const SequencePart> parts, const RoutingHook& hook = {});
  /// Only routes: as the others without the head.
  void route(Batch batch, const RoutingHook& hook);

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// 16 hexadecimal digits that tell models apart: config (sizes and switches), names, types and
/// shapes of all tensors, all bytes of the routers and a sample of the others. Traces and
/// placements carry it.
std::string model_fingerprint(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace coterie::models
