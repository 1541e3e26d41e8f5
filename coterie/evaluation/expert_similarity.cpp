// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/expert_similarity.hpp"

#include "coterie/base/error.hpp"

namespace coterie::evaluation {

namespace {

/// Adds what one layer did with one batch to its profile.
using AddBatch = void (*)(pruning::SimilarityProfile&, const models::LayerRouting&,
                          std::int64_t num_experts);

void add_logits(pruning::SimilarityProfile& profile, const models::LayerRouting& routing,
                std::int64_t num_experts) {
  COTERIE_CHECK(std::ssize(routing.record->logits) == routing.record->num_tokens * num_experts,
                "the decoder does not keep router logits");
  profile.add(routing.record->logits);
}

void add_outputs(pruning::SimilarityProfile& profile, const models::LayerRouting& routing,
                 std::int64_t /*num_experts*/) {
  profile.add_products(routing.output_products());
}

struct Comparison {
  const char* values;  ///< as ModelSimilarity says it
  pruning::Measure measure;
  AddBatch add;
};

pruning::ModelSimilarity compare_experts(models::Decoder& decoder,
                                         const std::vector<DomainSequences>& domains,
                                         const SequenceOptions& options,
                                         const Comparison& comparison, Progress& progress) {
  const models::ModelConfig& config = decoder.config();
  std::vector<pruning::SimilarityProfile> profiles(
      config.moe_layers.size(),
      pruning::SimilarityProfile(static_cast<std::int32_t>(config.num_experts)));
  std::int64_t total = 0;
  for (const DomainSequences& domain : domains) {
    total += domain.num_tokens();
  }
  progress.begin("profiling tokens", total);
  std::int64_t done = 0;
  for (const DomainSequences& domain : domains) {
    const auto bounds = cut_batches(domain.sequences, options.batch_tokens);
    for (std::size_t b = 0; b + 1 < bounds.size(); ++b) {
      std::size_t slot = 0;
      std::int64_t tokens = 0;
      decoder.route(std::span(domain.sequences).subspan(bounds[b], bounds[b + 1] - bounds[b]),
                    [&](const models::LayerRouting& routing) {
                      COTERIE_CHECK(routing.record != nullptr, "no record");
                      tokens = routing.record->num_tokens;
                      comparison.add(profiles[slot++], routing, config.num_experts);
                    });
      done += tokens;
      progress.update(done);
    }
  }
  progress.end();
  pruning::ModelSimilarity similarity;
  similarity.model_fingerprint = decoder.fingerprint();
  similarity.measure = comparison.measure;
  similarity.values = comparison.values;
  similarity.num_tokens = static_cast<std::uint64_t>(done);
  similarity.layers = config.moe_layers;
  for (const pruning::SimilarityProfile& profile : profiles) {
    similarity.tables.push_back(profile.table(comparison.measure));
  }
  return similarity;
}

}  // namespace

pruning::ModelSimilarity router_similarity(models::Decoder& decoder,
                                           const std::vector<DomainSequences>& domains,
                                           const SequenceOptions& options, pruning::Measure measure,
                                           Progress& progress) {
  return compare_experts(decoder, domains, options, {"router_logits", measure, add_logits},
                         progress);
}

pruning::ModelSimilarity output_similarity(models::Decoder& decoder,
                                           const std::vector<DomainSequences>& domains,
                                           const SequenceOptions& options, pruning::Measure measure,
                                           Progress& progress) {
  COTERIE_REQUIRE(measure != pruning::Measure::kCentredCosine,
                  "measure \"centred_cosine\" is not defined for outputs (cosine and "
                  "squared_cosine are)");
  return compare_experts(decoder, domains, options, {"expert_outputs", measure, add_outputs},
                         progress);
}

}  // namespace coterie::evaluation
