// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/bits_per_byte.hpp"

#include <numbers>
#include <numeric>

namespace coterie::evaluation {
namespace {

/// Counts devices a token over all layers of all batches.
class ReplicaCount {
 public:
  void add(const models::LayerRouting& routing) {
    if (routing.record == nullptr) {
      return;
    }
    const layer::RoutingRecord& record = *routing.record;
    for (const std::int64_t rows : record.rows_received) {
      rows_ += rows;
    }
    tokens_ += record.num_tokens;
  }
  [[nodiscard]] double mean() const {
    return tokens_ > 0 ? static_cast<double>(rows_) / static_cast<double>(tokens_) : 0;
  }

 private:
  std::int64_t rows_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace

double DomainScore::bits_per_byte() const {
  const double all_bits = std::accumulate(bits.begin(), bits.end(), 0.0);
  const double all_bytes = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  return all_bytes > 0 ? all_bits / all_bytes : 0;
}

std::vector<DomainScore> score_domains(models::Decoder& decoder, const models::Tokenizer& tokenizer,
                                       const std::vector<DomainSequences>& domains,
                                       const SequenceOptions& options, Progress& progress) {
  std::int64_t total = 0;
  for (const DomainSequences& domain : domains) {
    total += domain.num_tokens();
  }
  std::int64_t done = 0;
  progress.begin("scoring tokens", total);
  std::vector<DomainScore> scores;
  for (const DomainSequences& domain : domains) {
    DomainScore score{domain.domain, domain.num_tokens(), {}, {}, 0};
    ReplicaCount replicas;
    const auto bounds = cut_batches(domain.sequences, options.batch_tokens);
    for (std::size_t b = 0; b + 1 < bounds.size(); ++b) {
      const auto batch = std::span(domain.sequences).subspan(bounds[b], bounds[b + 1] - bounds[b]);
      const std::vector<double> losses = decoder.losses(
          batch, [&](const models::LayerRouting& routing) { replicas.add(routing); });
      std::size_t at = 0;
      for (const auto& sequence : batch) {
        double nats = 0;
        for (std::size_t t = 0; t < sequence.size(); ++t) {
          nats += losses[at++];
        }
        const std::size_t all = tokenizer.decode(sequence, false).size();
        const std::size_t first = tokenizer.decode(std::span(sequence).first(1), false).size();
        score.bits.push_back(nats / std::numbers::ln2);
        score.bytes.push_back(static_cast<double>(all > first ? all - first : 0));
      }
      done += static_cast<std::int64_t>(at);
      progress.update(done);
    }
    score.replicas = replicas.mean();
    scores.push_back(std::move(score));
  }
  progress.end();
  return scores;
}

}  // namespace coterie::evaluation
