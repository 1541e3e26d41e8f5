// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/data_order.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/base/random.hpp"

namespace coterie::training {
namespace {

/// Streams of the generator, so that epochs and draws never share numbers.
constexpr std::uint64_t kEpochStream = 1ULL << 62U;
constexpr std::uint64_t kDrawStream = 1ULL << 61U;

}  // namespace

DataOrder::DataOrder(Options options) : options_(std::move(options)) {
  COTERIE_CHECK(options_.sequence_length > 0, "sequence length ", options_.sequence_length);
  const std::size_t count = options_.num_tokens.size();
  if (options_.kind == OrderKind::kShuffled) {
    windows_before_.push_back(0);
    for (const std::int64_t size : options_.num_tokens) {
      const std::int64_t windows = std::max<std::int64_t>(0, size - 1) / options_.sequence_length;
      windows_before_.push_back(windows_before_.back() + windows);
    }
    COTERIE_REQUIRE(windows_before_.back() > 0, "the data has no sequence of ",
                    options_.sequence_length, " tokens and a target");
    return;
  }
  COTERIE_CHECK(options_.shares.size() == count, count, " sources, ", options_.shares.size(),
                " shares");
  const double total = std::accumulate(options_.shares.begin(), options_.shares.end(), 0.0);
  COTERIE_REQUIRE(total > 0, "the shares of the data's sources add up to ", total);
  share_before_.push_back(0);
  for (std::size_t s = 0; s < count; ++s) {
    COTERIE_REQUIRE(options_.shares[s] <= 0 || options_.num_tokens[s] > options_.sequence_length,
                    "source ", s, " has ", options_.num_tokens[s], " tokens, a sequence needs ",
                    options_.sequence_length + 1);
    share_before_.push_back(share_before_.back() + options_.shares[s] / total);
  }
}

std::int64_t DataOrder::epoch_size() const {
  return options_.kind == OrderKind::kShuffled ? windows_before_.back() : 0;
}

void DataOrder::shuffle_epoch(std::int64_t epoch) {
  if (epoch_ == epoch) {
    return;
  }
  permutation_.resize(static_cast<std::size_t>(epoch_size()));
  std::iota(permutation_.begin(), permutation_.end(), 0);
  Random(options_.seed, kEpochStream + static_cast<std::uint64_t>(epoch))
      .shuffle(std::span(permutation_));
  epoch_ = epoch;
}

Window DataOrder::draw(std::int64_t index) const {
  Random random(options_.seed, kDrawStream + static_cast<std::uint64_t>(index));
  const double u = random.uniform();
  std::size_t source = 0;
  for (std::size_t s = 0; s < options_.shares.size(); ++s) {
    if (options_.shares[s] > 0 && u >= share_before_[s]) {
      source = s;
    }
  }
  const std::int64_t room = options_.num_tokens[source] - options_.sequence_length;
  return {source, static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(room)))};
}

Window DataOrder::window(std::int64_t index) {
  COTERIE_CHECK(index >= 0, "sequence ", index);
  if (options_.kind == OrderKind::kMixture) {
    return draw(index);
  }
  shuffle_epoch(index / epoch_size());
  const std::int64_t window = permutation_[static_cast<std::size_t>(index % epoch_size())];
  const auto after = std::ranges::upper_bound(windows_before_, window);
  const auto source = static_cast<std::size_t>(after - windows_before_.begin()) - 1;
  return {source, (window - windows_before_[source]) * options_.sequence_length};
}

std::string name_of(OrderKind kind) {
  return kind == OrderKind::kShuffled ? "shuffled" : "mixture";
}

}  // namespace coterie::training
