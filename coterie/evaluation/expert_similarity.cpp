// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/expert_similarity.hpp"

#include "coterie/base/error.hpp"

namespace coterie::evaluation {

pruning::ModelSimilarity router_similarity(models::Decoder& decoder,
                                           const std::vector<DomainSequences>& domains,
                                           const SequenceOptions& options, pruning::Measure measure,
                                           Progress& progress) {
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
                      COTERIE_CHECK(
                          std::ssize(routing.record->logits) == tokens * config.num_experts,
                          "the decoder does not keep router logits");
                      profiles[slot++].add(routing.record->logits);
                    });
      done += tokens;
      progress.update(done);
    }
  }
  progress.end();
  pruning::ModelSimilarity similarity;
  similarity.model_fingerprint = decoder.fingerprint();
  similarity.measure = measure;
  similarity.values = "router_logits";
  similarity.num_tokens = static_cast<std::uint64_t>(done);
  similarity.layers = config.moe_layers;
  for (const pruning::SimilarityProfile& profile : profiles) {
    similarity.tables.push_back(profile.table(measure));
  }
  return similarity;
}

}  // namespace coterie::evaluation
