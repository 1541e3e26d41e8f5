// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/training_data.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/run/parallel/parallel.hpp"

namespace coterie::training {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDemo = "{demo}";

/// This share of `sequences`, cut; `numbers` name them.
std::vector<MicroBatch> cut_batches(std::int64_t count, const DataShare& share,
                                    std::int64_t micro_sequences, const auto& sequence_at) {
  const auto [first, last] = parallel::share_of(count, share.size, share.member);
  const std::int64_t largest = (count + share.size - 1) / share.size;
  std::vector<MicroBatch> batches;
  for (std::int64_t at = 0; at < largest; at += micro_sequences) {
    MicroBatch& batch = batches.emplace_back();
    for (std::int64_t i = first + at; i < std::min(last, first + at + micro_sequences); ++i) {
      sequence_at(i, batch);
    }
  }
  return batches;
}

}  // namespace

fs::path RecipePaths::resolve(const std::string& path) const {
  if (path.starts_with(kDemo)) {
    return demo / fs::path(path.substr(kDemo.size())).relative_path();
  }
  return folder / path;
}

void make_absolute(Recipe& recipe, const RecipePaths& paths) {
  const auto change = [&](std::string& path) {
    if (!path.empty() && !path.starts_with(kDemo)) {
      path = fs::absolute(paths.resolve(path)).lexically_normal().string();
    }
  };
  change(recipe.start_from);
  change(recipe.tune.placement);
  change(recipe.tune.pruning);
  change(recipe.tune.similarity);
  change(recipe.data.tokenizer);
  for (std::vector<TextSource>* sources : {&recipe.data.sources, &recipe.data.held_out}) {
    for (TextSource& source : *sources) {
      std::ranges::for_each(source.files, change);
    }
  }
}

std::int64_t data_bytes(const Recipe& recipe, const RecipePaths& paths) {
  std::int64_t bytes = 0;
  for (const std::vector<TextSource>* sources : {&recipe.data.sources, &recipe.data.held_out}) {
    for (const TextSource& source : *sources) {
      for (const std::string& name : source.files) {
        const fs::path path = paths.resolve(name);
        std::error_code error;
        const auto size = static_cast<std::int64_t>(fs::file_size(path, error));
        COTERIE_REQUIRE(!error, path.string(), ": cannot be read: ", error.message());
        bytes += path.extension() == ".tokens" ? 2 * size : 4 * size / 3;
      }
    }
  }
  return bytes;
}

TrainingData::TrainingData(const Recipe& recipe, const RecipePaths& paths, Progress& progress)
    : sequence_length_(recipe.sequence_length), micro_sequences_(recipe.micro_batch_sequences) {
  const auto vocab = recipe.model.find("vocab_size");
  COTERIE_REQUIRE(vocab != recipe.model.end() && vocab->is_number_integer(), "recipe ", recipe.name,
                  ": /model/vocab_size: expected a whole number");
  std::optional<models::Tokenizer> tokenizer;
  std::int32_t separator = -1;
  if (!recipe.data.tokenizer.empty()) {
    tokenizer_ = paths.resolve(recipe.data.tokenizer);
    tokenizer = models::Tokenizer::from_file(tokenizer_ / "tokenizer.json");
  }
  if (!recipe.data.separator.empty()) {
    const auto id = tokenizer ? tokenizer->token_to_id(recipe.data.separator) : std::nullopt;
    COTERIE_REQUIRE(id.has_value(), "recipe ", recipe.name,
                    ": /data/separator: the tokenizer has no token \"", recipe.data.separator,
                    "\"");
    separator = *id;
  }
  const auto read_all = [&](const std::vector<TextSource>& sources) {
    std::vector<TokenStream> streams;
    for (TextSource source : sources) {
      for (std::string& file : source.files) {
        file = fs::absolute(paths.resolve(file)).string();
      }
      progress.begin("reading " + source.name, 0);
      streams.push_back(read_token_stream(source, {}, tokenizer ? &*tokenizer : nullptr, separator,
                                          vocab->get<std::int64_t>()));
      progress.end();
    }
    return streams;
  };
  streams_ = read_all(recipe.data.sources);
  held_out_ = read_all(recipe.data.held_out);
  DataOrder::Options order{recipe.data.order, sequence_length_, recipe.seed, {}, {}};
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    order.num_tokens.push_back(std::ssize(streams_[s].token_ids));
    order.shares.push_back(recipe.data.sources[s].share);
  }
  order_.emplace(std::move(order));
}

std::vector<std::int32_t> TrainingData::cut(const TokenStream& stream, std::int64_t begin) const {
  const auto first = stream.token_ids.begin() + begin;
  return {first, first + sequence_length_ + 1};
}

std::vector<MicroBatch> TrainingData::batch(std::int64_t first, std::int64_t count,
                                            const DataShare& share) {
  return cut_batches(count, share, micro_sequences_, [&](std::int64_t i, MicroBatch& batch) {
    const Window window = order_->window(first + i);
    batch.sequences.push_back(cut(streams_[window.source], window.begin));
    batch.numbers.push_back(first + i);
  });
}

std::vector<TrainingData::HeldOut> TrainingData::held_out(std::int64_t num_sequences,
                                                          const DataShare& share) const {
  std::vector<HeldOut> all;
  std::int64_t left = num_sequences;
  for (std::size_t s = 0; s < held_out_.size(); ++s) {
    const TokenStream& stream = held_out_[s];
    const auto size = std::ssize(stream.token_ids);
    const std::int64_t part = left / static_cast<std::int64_t>(held_out_.size() - s);
    const std::int64_t count =
        std::min(part, std::max<std::int64_t>(0, size - 1) / sequence_length_);
    left -= part;
    if (count == 0) {
      continue;
    }
    HeldOut held;
    held.name = stream.name;
    held.bytes_per_target = static_cast<double>(stream.num_bytes) / static_cast<double>(size);
    held.batches =
        cut_batches(count, share, micro_sequences_, [&](std::int64_t i, MicroBatch& batch) {
          batch.sequences.push_back(cut(stream, i * sequence_length_));
          batch.numbers.push_back(i);
        });
    all.push_back(std::move(held));
  }
  return all;
}

Json TrainingData::description() const {
  Json list = Json::array();
  for (const TokenStream& stream : streams_) {
    list.push_back({{"name", stream.name},
                    {"num_tokens", stream.token_ids.size()},
                    {"fingerprint", Hash().add(stream.fingerprint()).hex()}});
  }
  return list;
}

std::int64_t TrainingData::num_tokens() const {
  std::int64_t total = 0;
  for (const TokenStream& stream : streams_) {
    total += std::ssize(stream.token_ids);
  }
  return total;
}

}  // namespace coterie::training
