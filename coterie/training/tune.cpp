// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/tune.hpp"

#include <algorithm>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/training/strict_object.hpp"

namespace coterie::training {
namespace {

const std::vector<std::string>& mode_names() {
  static const std::vector<std::string> names = {"full", "router_frozen", "experts_only", "lora"};
  return names;
}

}  // namespace

std::string name_of(TuneMode mode) {
  return mode_names().at(static_cast<std::size_t>(mode));
}

TuneMode tune_mode_of(const std::string& name) {
  const auto found = std::ranges::find(mode_names(), name);
  COTERIE_REQUIRE(found != mode_names().end(), "mode \"", name,
                  "\" is not one of full, router_frozen, experts_only, lora");
  return static_cast<TuneMode>(found - mode_names().begin());
}

Json to_json(const TuneRecipe& tune) {
  return {{"mode", name_of(tune.mode)},
          {"lora",
           {{"rank", tune.lora.rank},
            {"alpha", tune.lora.alpha},
            {"experts", tune.lora.experts},
            {"attention", tune.lora.attention}}},
          {"placement", tune.placement},
          {"pruning", tune.pruning},
          {"similarity", tune.similarity}};
}

TuneRecipe read_tune_recipe(const JsonReader& reader) {
  TuneRecipe tune;
  StrictObject object(reader);
  std::size_t mode = 0;
  object.read_choice("mode", mode, mode_names());
  tune.mode = static_cast<TuneMode>(mode);
  if (object.has("lora")) {
    StrictObject lora(object.required("lora"));
    lora.read("rank", tune.lora.rank, 1, 1 << 16);
    lora.read("alpha", tune.lora.alpha, 0, 1e9);
    lora.read("experts", tune.lora.experts);
    lora.read("attention", tune.lora.attention);
    lora.finish();
  }
  object.read("placement", tune.placement);
  object.read("pruning", tune.pruning);
  object.read("similarity", tune.similarity);
  object.finish();
  COTERIE_REQUIRE(tune.pruning.empty() || !tune.placement.empty(),
                  "tune: pruning needs the placement that its policy is for");
  COTERIE_REQUIRE(tune.mode != TuneMode::kLora || tune.lora.experts || tune.lora.attention,
                  "tune: lora adapts neither experts nor attention");
  return tune;
}

}  // namespace coterie::training
