// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coterie/base/log.hpp"
#include "coterie/evaluation/text_sequences.hpp"
#include "coterie/plan/pruning/pruning.hpp"

namespace coterie::evaluation {

/// Runs texts through the model and compares the experts of each layer by their outputs on the same
/// tokens: v_i is what expert i gives for a token, all experts for all tokens (of the first
/// `max_tokens` a domain, options). kBadInput for kCentredCosine, which outputs do not define.
pruning::ModelSimilarity output_similarity(models::Decoder& decoder,
                                           const std::vector<DomainSequences>& domains,
                                           const SequenceOptions& options, pruning::Measure measure,
                                           Progress& progress = NoProgress::instance());

/// Runs texts through the model and compares the columns of each layer's router logits. The decoder
/// must have been made with keep_router_logits (kInternal otherwise).
pruning::ModelSimilarity router_similarity(models::Decoder& decoder,
                                           const std::vector<DomainSequences>& domains,
                                           const SequenceOptions& options, pruning::Measure measure,
                                           Progress& progress = NoProgress::instance());

}  // namespace coterie::evaluation
