// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coterie/base/json.hpp"
#include "coterie/base/log.hpp"
#include "coterie/training/data_order.hpp"
#include "coterie/training/model.hpp"
#include "coterie/training/recipe.hpp"
#include "coterie/training/token_streams.hpp"

namespace coterie::training {

/// Where a recipe's paths begin.
struct RecipePaths {
  std::filesystem::path folder;  ///< of relative paths
  std::filesystem::path demo;    ///< stands for "{demo}"

  [[nodiscard]] std::filesystem::path resolve(const std::string& path) const;
};

/// Makes all paths of a recipe absolute, but for those in "{demo}": then it says the same from
/// every folder.
void make_absolute(Recipe& recipe, const RecipePaths& paths);

/// Bytes that the tokens of all sources will take, reckoned from the sizes of the files: a token of
/// text stands for about 3 bytes.
std::int64_t data_bytes(const Recipe& recipe, const RecipePaths& paths);

/// Which sequences of a step are this rank's: data coordinate `member` of `size`.
struct DataShare {
  int member = 0;
  int size = 1;
};

/// The tokens of a recipe, for training and for evaluation. Every rank holds all of them.
class TrainingData {
 public:
  /// Reads and tokenises all files. Errors name the file and the recipe's key.
  TrainingData(const Recipe& recipe, const RecipePaths& paths, Progress& progress);

  /// Sequences [first, first + count) of the run's order, this share of them, cut into
  /// micro-batches; every share has equally many.
  std::vector<MicroBatch> batch(std::int64_t first, std::int64_t count, const DataShare& share);

  struct HeldOut {
    std::string name;
    std::vector<MicroBatch> batches;
    /// Bytes of text a target stands for, on average; 0 if not known.
    double bytes_per_target = 0;
  };
  /// The first windows of each held-out source, without overlap, about `num_sequences` in all.
  [[nodiscard]] std::vector<HeldOut> held_out(std::int64_t num_sequences,
                                              const DataShare& share) const;

  /// Sizes and fingerprints of the training sources: a run resumes only with the same.
  [[nodiscard]] Json description() const;
  [[nodiscard]] std::int64_t num_tokens() const;
  [[nodiscard]] std::int64_t epoch_size() const { return order_->epoch_size(); }
  /// The tokenizer's folder; empty if the recipe has none.
  [[nodiscard]] const std::filesystem::path& tokenizer_folder() const { return tokenizer_; }

 private:
  [[nodiscard]] std::vector<std::int32_t> cut(const TokenStream& stream, std::int64_t begin) const;

  std::int64_t sequence_length_;
  std::int64_t micro_sequences_;
  std::filesystem::path tokenizer_;
  std::vector<TokenStream> streams_;
  std::vector<TokenStream> held_out_;
  std::optional<DataOrder> order_;
};

}  // namespace coterie::training
