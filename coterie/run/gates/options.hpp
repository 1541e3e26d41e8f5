// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "coterie/base/json.hpp"

namespace coterie::gates {

/// How tokens and experts find each other; docs/design/011 holds the formula of each.
enum class GateKind : std::uint8_t {
  kTopkSoftmax,   ///< Mixtral, OLMoE, Qwen-MoE: softmax and the top k
  kGshard,        ///< noisy top-k: softmax(KeepTopK(H)), H = xW + normal * softplus(xW_noise)
  kSwitch,        ///< top-1, weight = its softmax probability
  kSigmoid,       ///< BASE layers, StableMoE: top-k logits, weight = sigmoid(logit)
  kDeepseek,      ///< V3 (and V2): selection bias, groups of experts, scaling
  kXmoe,          ///< X-MoE: cosine in a low-rank space over a learned temperature
  kExpertChoice,  ///< each expert picks its tokens, within a sequence
  kSoftMoe,       ///< slots are soft mixtures of the tokens of a sequence
  kCustom,        ///< a user's own class; make_gate cannot make it
};

/// Over which logits a softmax runs.
enum class SoftmaxOver : std::uint8_t {
  kAllExperts,  ///< softmax, then top-k
  kSelected,    ///< top-k, then softmax over the k logits
};

/// What DeepSeek's gate makes of logits.
enum class ScoreFunction : std::uint8_t { kSigmoid, kSoftmax };

/// What a group of experts is worth to a token.
enum class GroupScore : std::uint8_t {
  kTop2Sum,  ///< sum of the two highest selection scores (DeepSeek-V3)
  kMax,      ///< the highest (DeepSeek-V2)
};

/// Element type of router weights and logits, whatever the model's type is.
enum class RouterType : std::uint8_t { kFloat32, kFloat64 };

/// Over which tokens the load balance loss counts and averages.
enum class BalanceScope : std::uint8_t {
  kSequence,  ///< each sequence on its own, then the mean: independent of layout and accumulation
  kBatch,     ///< the tokens of one forward call: depends on layout and accumulation
};

/// Coefficients of the auxiliary losses; 0 is off. Formulas: balance_loss.hpp.
struct BalanceOptions {
  double load_balance = 0.0;
  double z_loss = 0.0;
  BalanceScope scope = BalanceScope::kSequence;

  bool operator==(const BalanceOptions&) const = default;
};

/// Everything about a gate but its weights. Fields that a kind does not use must keep their
/// defaults (check_gate_options says which one does not).
struct GateOptions {
  GateKind kind = GateKind::kTopkSoftmax;
  std::string name = "gate";     ///< begins every message, such as "layer 3"
  std::int64_t hidden = 0;       ///< H
  std::int32_t num_experts = 0;  ///< E
  std::int32_t top_k = 1;        ///< k; not for expert choice and SoftMoE
  RouterType type = RouterType::kFloat32;

  SoftmaxOver softmax_over = SoftmaxOver::kAllExperts;  ///< top-k softmax
  bool renormalise = false;  ///< the k weights are divided by their sum (norm_topk_prob)

  ScoreFunction score = ScoreFunction::kSigmoid;  ///< DeepSeek
  bool selection_bias = false;                    ///< DeepSeek: bias on selection, not on weights
  std::int32_t num_groups = 1;                    ///< DeepSeek: n_group
  std::int32_t num_groups_kept = 1;               ///< DeepSeek: topk_group
  GroupScore group_score = GroupScore::kTop2Sum;  ///< DeepSeek
  double scaling = 1.0;                           ///< DeepSeek: routed_scaling_factor
  double bias_update_rate = 0.0;                  ///< DeepSeek: step of update_selection_bias

  bool noise = true;    ///< GShard: noise in training
  double jitter = 0.0;  ///< Switch: in training the router sees x * uniform(1 - j, 1 + j)

  std::int32_t projection = 0;  ///< X-MoE: width of the low-rank space; 0: E / 2, at least 1
  double temperature = 0.3;     ///< X-MoE: at the start of training

  double capacity_factor = 1.0;       ///< expert choice: mean number of experts a token
  std::int32_t slots_per_expert = 1;  ///< SoftMoE
  bool normalise = false;             ///< SoftMoE: tokens and slots L2-normalised, learned scale

  BalanceOptions balance;
  std::uint64_t noise_stream = 0;   ///< tells apart the noise of gates: the layer's number
  double initializer_range = 0.02;  ///< deviation of new weights
  std::uint64_t initializer_seed = 0;

  bool operator==(const GateOptions&) const = default;
};

enum class OrderKind : std::uint8_t {
  kIndex,   ///< rows are the tokens; a dropped pick has the id -1
  kEinsum,  ///< GShard: rows are the experts' capacity slots, made by a dispatch mask
  kSlots,   ///< SoftMoE: rows are its slots
};

enum class CapacityScope : std::uint8_t {
  kSequence,  ///< of each sequence: independent of layout
  kRank,      ///< of all tokens of one forward call on one rank
};

/// Which picks an expert keeps when more want it than fit.
enum class CapacityKeep : std::uint8_t {
  kPosition,  ///< first choices before second choices and so on, then earlier tokens (GShard)
  kScore,     ///< higher routing weight first, then as kPosition
};

enum class CapacityRounding : std::uint8_t { kUp, kDown };

/// The most picks that an expert accepts: capacity.hpp has the rule. factor 0: nothing is dropped.
struct CapacityOptions {
  double factor = 0.0;
  std::int64_t minimum = 1;
  CapacityRounding rounding = CapacityRounding::kUp;
  CapacityScope scope = CapacityScope::kSequence;
  CapacityKeep keep = CapacityKeep::kPosition;

  bool operator==(const CapacityOptions&) const = default;
};

struct OrderOptions {
  OrderKind kind = OrderKind::kIndex;
  std::string name = "order";  ///< begins every message
  CapacityOptions capacity;    ///< not for kSlots

  bool operator==(const OrderOptions&) const = default;
};

/// "topk_softmax", "gshard", "switch", "sigmoid", "deepseek", "xmoe", "expert_choice", "softmoe",
/// "custom".
const char* name_of(GateKind kind) noexcept;
/// "index", "einsum", "slots".
const char* name_of(OrderKind kind) noexcept;

/// Throws kBadInput naming the gate, the field and its value.
void check_gate_options(const GateOptions& options);
void check_order_options(const OrderOptions& options);

/// Plain members, one a field. Reading: absent members keep their defaults; an unknown member, a
/// wrong type or an unknown name is kBadInput with its place. Options are not checked further.
Json to_json(const GateOptions& options);
Json to_json(const OrderOptions& options);
GateOptions gate_options_from_json(const JsonReader& json);
OrderOptions order_options_from_json(const JsonReader& json);

/// As JSON.
std::ostream& operator<<(std::ostream& out, const GateOptions& options);
std::ostream& operator<<(std::ostream& out, const OrderOptions& options);

}  // namespace coterie::gates
