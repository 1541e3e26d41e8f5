// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "coterie/training/model.hpp"
#include "coterie/training/tune.hpp"

namespace coterie::training {

/// A model of which only low-rank adapters learn (LoraRecipe). Each step sets the adapted matrices
/// to W + alpha / rank * B A, lets the model compute its gradient G = dL/dW as ever, and gives
///
///     dL/dB = alpha / rank * G A^T,     dL/dA = alpha / rank * B^T G
///
/// which are the exact gradients, at any layout that does not cut matrices; before they are summed
/// over ranks, so that only they travel. Memory: the model twice (W and the sum) and one gradient,
/// but optimizer state for the adapters alone.
///
/// parameters() are the adapters, named as PEFT names them
/// ("base_model.model.NAME.lora_A.weight", rank x in; lora_B: out x rank);
/// exported_parameters() the model with the adapters merged. kUnsupported where a layout cuts
/// matrices (model or expert_shard above 1); kBadInput where nothing is to be adapted.
std::unique_ptr<Model> make_lora_model(std::unique_ptr<Model> model, const LoraRecipe& recipe,
                                       std::uint64_t seed);

/// adapter_config.json of PEFT for these adapters. `base`: the folder or name of the model.
void write_adapter_config(const std::filesystem::path& folder, const LoraRecipe& recipe,
                          std::span<const Parameter> adapters, const std::string& base);

}  // namespace coterie::training
