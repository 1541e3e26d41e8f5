// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/base/log.hpp"
#include "coterie/evaluation/text_sequences.hpp"
#include "coterie/plan/pruning/pruning.hpp"

namespace coterie::evaluation {

/// Runs texts through the model and compares the columns of each layer's router logits. The decoder
/// must have been made with keep_router_logits (kInternal otherwise).
pruning::ModelSimilarity router_similarity(models::Decoder& decoder,
                                           const std::vector<DomainSequences>& domains,
                                           const SequenceOptions& options, pruning::Measure measure,
                                           Progress& progress = NoProgress::instance());

}  // namespace coterie::evaluation
