// SPDX-License-Identifier: Apache-2.0
#include "cli/logits_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "coterie/base/error.hpp"

namespace coterie::cli {
namespace {

template <typename T>
void put(std::vector<std::byte>& out, std::span<const T> values) {
  const std::size_t at = out.size();
  out.resize(at + values.size_bytes());
  if (!values.empty()) {
    std::memcpy(&out[at], values.data(), values.size_bytes());
  }
}

template <typename T>
std::vector<T> take(std::span<const std::byte>& in, std::size_t count) {
  COTERIE_CHECK(in.size() >= count * sizeof(T), "a packed step is too short");
  std::vector<T> values(count);
  if (count > 0) {
    std::memcpy(values.data(), in.data(), count * sizeof(T));
  }
  in = in.subspan(count * sizeof(T));
  return values;
}

std::vector<std::int32_t> sorted_ids(std::span<const std::int32_t> ids) {
  std::vector<std::int32_t> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  return sorted;
}

/// The weight of each expert that `from` has and `other` has not.
std::vector<float> weights_only_in(std::span<const std::int32_t> from,
                                   std::span<const float> weights,
                                   const std::vector<std::int32_t>& other) {
  std::vector<float> only;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!std::ranges::binary_search(other, from[i])) {
      only.push_back(weights[i]);
    }
  }
  return only;
}

/// Compares what each token of one sequence chose. Rows of the sequence begin at `plain_row` and
/// `rank_row`. Returns the first position that a flip may have changed.
std::int64_t compare_routing(const RoutingOfStep& plain, std::int64_t plain_row,
                             const RoutingOfStep& ranks, std::int64_t rank_row,
                             std::int64_t num_tokens, std::int64_t sequence,
                             std::vector<RoutingFlip>& flips) {
  std::int64_t reached = num_tokens;
  const auto k = static_cast<std::size_t>(plain.top_k);
  for (std::size_t l = 0; l < plain.layers.size(); ++l) {
    std::int64_t first = reached;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      const std::size_t a = static_cast<std::size_t>(plain_row + t) * k;
      const std::size_t b = static_cast<std::size_t>(rank_row + t) * k;
      const auto one = std::span(plain.ids[l]).subspan(a, k);
      const auto many = std::span(ranks.ids[l]).subspan(b, k);
      RoutingFlip flip{plain.layers[l],  sequence, t,           sorted_ids(one),
                       sorted_ids(many), 0,        t >= reached};
      if (flip.one_process == flip.parallel) {
        continue;
      }
      const auto lost =
          weights_only_in(one, std::span(plain.weights[l]).subspan(a, k), flip.parallel);
      const auto gained =
          weights_only_in(many, std::span(ranks.weights[l]).subspan(b, k), flip.one_process);
      if (lost.empty() || gained.empty()) {
        flip.margin = 1;
      } else {
        const double best = *std::ranges::max_element(lost);
        flip.margin = std::abs(best - *std::ranges::min_element(gained)) / best;
      }
      flips.push_back(std::move(flip));
      first = std::min(first, t);
    }
    reached = first;
  }
  return reached;
}

}  // namespace

void RoutingOfStep::add(const models::LayerRouting& routing) {
  layers.push_back(routing.layer);
  top_k = routing.top_k;
  ids.emplace_back(routing.ids.begin(), routing.ids.end());
  weights.emplace_back(routing.weights.begin(), routing.weights.end());
}

std::vector<std::byte> StepOutput::pack() const {
  const std::vector<std::uint64_t> sizes = {logits.rows(), logits.columns(), routing.layers.size(),
                                            static_cast<std::uint64_t>(routing.top_k),
                                            is_repeated ? 1U : 0U};
  std::vector<std::byte> out;
  put<std::uint64_t>(out, sizes);
  put<std::int32_t>(out, routing.layers);
  for (std::size_t l = 0; l < routing.layers.size(); ++l) {
    put<std::int32_t>(out, routing.ids[l]);
    put<float>(out, routing.weights[l]);
  }
  put<float>(out, logits.values());
  return out;
}

StepOutput StepOutput::unpack(std::span<const std::byte> bytes) {
  const auto sizes = take<std::uint64_t>(bytes, 5);
  StepOutput output;
  output.is_repeated = sizes[4] != 0;
  output.routing.top_k = static_cast<std::int32_t>(sizes[3]);
  output.routing.layers = take<std::int32_t>(bytes, sizes[2]);
  for (std::size_t l = 0; l < sizes[2]; ++l) {
    output.routing.ids.push_back(take<std::int32_t>(bytes, sizes[0] * sizes[3]));
    output.routing.weights.push_back(take<float>(bytes, sizes[0] * sizes[3]));
  }
  output.logits = Matrix<float>(sizes[0], sizes[1]);
  const auto values = take<float>(bytes, sizes[0] * sizes[1]);
  std::ranges::copy(values, output.logits.values().begin());
  return output;
}

OneProcessCheck::OneProcessCheck(const std::filesystem::path& model,
                                 const models::DecoderOptions& same_placement,
                                 const models::DecoderOptions& no_placement)
    : same_(model, same_placement), plain_(model, no_placement) {}

void OneProcessCheck::compare(std::span<const std::vector<std::int32_t>> step, std::int64_t first,
                              std::span<const std::vector<std::byte>> parts, LogitsCheck& check) {
  std::vector<StepOutput> ranks;
  for (const auto& part : parts) {
    ranks.push_back(StepOutput::unpack(part));
    check.runs_bit_identical = check.runs_bit_identical && ranks.back().is_repeated;
  }
  const Matrix<float> same = same_.logits(step);
  RoutingOfStep routing;
  const Matrix<float> plain =
      plain_.logits(step, [&](const models::LayerRouting& r) { routing.add(r); });
  std::vector<std::int64_t> rank_row(ranks.size(), 0);
  std::int64_t row = 0;
  for (std::size_t s = 0; s < step.size(); ++s) {
    const std::size_t r = s % ranks.size();
    const std::int64_t length = std::ssize(step[s]);
    const std::int64_t reached =
        compare_routing(routing, row, ranks[r].routing, rank_row[r], length,
                        first + static_cast<std::int64_t>(s), check.flips);
    for (std::int64_t t = 0; t < length; ++t, ++row, ++rank_row[r]) {
      const auto mine = std::as_const(ranks[r].logits).row(static_cast<std::size_t>(rank_row[r]));
      digest_.add(std::as_bytes(mine));
      const auto wanted = same.row(static_cast<std::size_t>(row));
      check.same_placement_bit_equal =
          check.same_placement_bit_equal &&
          std::memcmp(mine.data(), wanted.data(), mine.size_bytes()) == 0;
      const auto reference = plain.row(static_cast<std::size_t>(row));
      double difference = 0;
      for (std::size_t v = 0; v < mine.size(); ++v) {
        const double d = std::abs(static_cast<double>(mine[v]) - static_cast<double>(reference[v]));
        difference = d > difference || std::isnan(d) ? d : difference;
        check.max_abs_logit =
            std::max(check.max_abs_logit, std::abs(static_cast<double>(reference[v])));
      }
      COTERIE_CHECK(!std::isnan(difference), "sequence ", first + static_cast<std::int64_t>(s),
                    ", position ", t, ": a logit is not a number");
      check.max_difference = std::max(check.max_difference, difference);
      if (t < reached) {
        check.max_difference_before_flips = std::max(check.max_difference_before_flips, difference);
      }
    }
  }
}

}  // namespace coterie::cli
