// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coterie::training {

enum class OrderKind : std::uint8_t {
  /// Every window of every source once an epoch, in an order shuffled anew each epoch.
  kShuffled,
  /// Each sequence is drawn: a source by its share, then a window at any offset of it.
  kMixture,
};

/// Where a sequence lies.
struct Window {
  std::size_t source = 0;
  std::int64_t begin = 0;  ///< first token; the window has sequence_length + 1 tokens
  bool operator==(const Window&) const = default;
};

/// Which tokens the n-th sequence of a training run has: a pure function of the seed, the sources'
/// sizes and n. So the order does not depend on the batch size, the number of ranks or their
/// layout, and a run resumes exactly by knowing how many sequences were used. Not thread-safe (the
/// order of one epoch is kept).
class DataOrder {
 public:
  struct Options {
    OrderKind kind = OrderKind::kShuffled;
    std::int64_t sequence_length = 0;  ///< tokens with a target
    std::uint64_t seed = 0;
    std::vector<std::int64_t> num_tokens;  ///< of each source
    std::vector<double> shares;            ///< of each source (kMixture)
  };
  /// kBadInput if no source has a whole window, or (kMixture) one with a share has none.
  explicit DataOrder(Options options);

  /// The window of sequence `index` (from 0, over all epochs).
  Window window(std::int64_t index);
  /// Sequences of an epoch; 0 in mixture order, which has none.
  [[nodiscard]] std::int64_t epoch_size() const;

 private:
  void shuffle_epoch(std::int64_t epoch);
  Window draw(std::int64_t index) const;

  Options options_;
  std::vector<std::int64_t> windows_before_;  ///< [sources + 1] (kShuffled)
  std::vector<double> share_before_;          ///< [sources + 1], ends at 1 (kMixture)
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> permutation_;
};

std::string name_of(OrderKind kind);

}  // namespace coterie::training
