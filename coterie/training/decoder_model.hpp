// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "coterie/models/models.hpp"
#include "coterie/run/kernels/kernels.hpp"
#include "coterie/run/parallel/parallel.hpp"
#include "coterie/training/model.hpp"
#include "coterie/training/recipe.hpp"

namespace coterie::training {

/// The layout of a recipe. kBadInput if its sizes do not fit each other.
parallel::Layout layout_of(const Recipe& recipe);

/// The model that a recipe describes. Errors name the key of config.json.
models::TrainableConfig config_of(const Recipe& recipe);

/// Products of one token forward, see docs/training.md: 2 for each parameter of a matrix that the
/// token meets (router, head and top_k experts included, embedding not), and in each layer's
/// attention 2 * heads * head_dim * sequence_length (scores and mixture of values, half of them
/// masked).
ModelSize size_of(const models::TrainableConfig& config, std::int64_t sequence_length);

/// models::TrainableDecoder as the trainer sees it. Its weights are new (by the recipe's seed) or
/// those of `start_from` (a folder; empty: new). Groups and threads must outlive it. Collective.
std::unique_ptr<Model> make_decoder_model(const Recipe& recipe, parallel::Groups& groups,
                                          const kernels::Execution& execution,
                                          const std::filesystem::path& start_from);

}  // namespace coterie::training
