// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "coterie/base/json_forward.hpp"

namespace coterie {
class JsonReader;
}

namespace coterie::training {

/// What a run changes of the model it starts from.
enum class TuneMode : std::uint8_t {
  kFull,          ///< everything
  kRouterFrozen,  ///< everything but the routers
  kExpertsOnly,   ///< the experts alone
  kLora,          ///< low-rank adapters; the model itself stays
};

/// Low-rank adapters (Hu et al., arXiv:2106.09685, section 4.1): W + alpha / rank * B A, with A
/// [rank, in] random and B [out, rank] zero at the start, one a matrix of each expert and of
/// attention.
struct LoraRecipe {
  std::int64_t rank = 8;
  double alpha = 16;
  bool experts = true;
  bool attention = true;
  bool operator==(const LoraRecipe&) const = default;
};

/// Fine-tuning, and the pruning policy that it is done under.
struct TuneRecipe {
  TuneMode mode = TuneMode::kFull;
  LoraRecipe lora;
  std::string placement;   ///< file; "": contiguous
  std::string pruning;     ///< policy of coterie prune for that placement; "": none
  std::string similarity;  ///< of coterie similarity, for a policy that replaces by it
  bool operator==(const TuneRecipe&) const = default;
};

/// "full", "router_frozen", "experts_only", "lora".
std::string name_of(TuneMode mode);
/// kBadInput lists the names.
TuneMode tune_mode_of(const std::string& name);

Json to_json(const TuneRecipe& tune);
TuneRecipe read_tune_recipe(const JsonReader& reader);

}  // namespace coterie::training
