// SPDX-License-Identifier: Apache-2.0
// Laws of the decoder: bits do not depend on batch, threads, placement file or ranks; bad input is
// refused. The models are made here, without Python.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <span>

#include "coterie/base/json.hpp"
#include "coterie/run/comm/comm.hpp"
#include "tests/models/scratch_folder.hpp"
#include "tests/models/tiny_model.hpp"

namespace coterie::models {
namespace {

using Sequences = std::vector<std::vector<std::int32_t>>;

Sequences some_sequences() {
  Random random(5);
  Sequences sequences;
  for (const std::size_t length : {11U, 0U, 64U, 1U, 150U}) {
    std::vector<std::int32_t> tokens(length);
    for (auto& token : tokens) {
      token = static_cast<std::int32_t>(random.below(61));
    }
    sequences.push_back(tokens);
  }
  return sequences;
}

placement::Placement placement_for(const TinyModel& sizes, std::int32_t num_devices,
                                   bool shuffled = false) {
  std::vector<std::int32_t> layers;
  for (std::int32_t layer = 0; layer < sizes.num_layers; ++layer) {
    layers.push_back(layer);
  }
  placement::Placement placement = placement::contiguous_placement_of(
      layers, static_cast<std::int32_t>(sizes.num_experts), num_devices);
  if (shuffled) {  // round robin, and expert 0 everywhere
    for (placement::PlacedLayer& placed : placement.layers) {
      auto& devices = placed.placement.experts_of_device;
      devices.assign(static_cast<std::size_t>(num_devices), {});
      for (std::int32_t d = 0; d < num_devices; ++d) {
        devices[static_cast<std::size_t>(d)].push_back(0);
      }
      for (std::int32_t e = 1; e < sizes.num_experts; ++e) {
        devices[static_cast<std::size_t>(e % num_devices)].push_back(e);
      }
    }
  }
  return placement;
}

/// The same weights as a Mixtral with a window (it has no norms of queries and keys).
void write_windowed_model(const std::filesystem::path& folder, const TinyModel& sizes) {
  std::vector<OutgoingTensor> tensors;
  for (OutgoingTensor& tensor : tiny_tensors(sizes)) {
    const auto replace = [&](const std::string& from, const std::string& to) {
      if (const auto at = tensor.name.find(from); at != std::string::npos) {
        tensor.name.replace(at, from.size(), to);
      }
    };
    replace("mlp.", "block_sparse_moe.");
    replace("gate_proj", "w1");
    replace("up_proj", "w3");
    replace("down_proj", "w2");
    if (tensor.name.find("_norm.weight") == std::string::npos) {
      tensors.push_back(std::move(tensor));
    }
  }
  write_checkpoint(folder, tensors);
  Json config = read_json_file(folder / "config.json");
  config["model_type"] = "mixtral";
  config.erase("norm_topk_prob");
  config["sliding_window"] = 37;
  write_json_file(folder / "config.json", config);
}

class DecoderLaws : public testing::Test {
 protected:
  void SetUp() override { write_tiny_model(folder_.path(), sizes_); }

  Matrix<float> logits(const DecoderOptions& options, const Sequences& batch) {
    return Decoder(folder_.path(), options).logits(batch);
  }

  ScratchFolder folder_;
  TinyModel sizes_;
};

/// Logits of each prefix of the sequence's chunks, by extend().
std::vector<std::vector<float>> chunked(Decoder& decoder, const std::vector<std::int32_t>& tokens,
                                        std::span<const std::size_t> ends) {
  KeyValueCache cache = decoder.make_cache();
  std::vector<std::vector<float>> rows;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    const SequencePart part{std::span(tokens).subspan(begin, end - begin), &cache};
    const Matrix<float> logits = decoder.extend(std::span(&part, 1));
    rows.emplace_back(logits.row(0).begin(), logits.row(0).end());
    begin = end;
  }
  EXPECT_EQ(cache.length(), static_cast<std::int64_t>(begin));
  return rows;
}

TEST_F(DecoderLaws, ATokenHasTheSameBitsHoweverItsSequenceIsCut) {
  kernels::Threads threads(2);
  for (const bool windowed : {false, true}) {
    if (windowed) {
      write_windowed_model(folder_.path(), sizes_);
    }
    DecoderOptions options;
    options.execution.threads = &threads;
    Decoder decoder(folder_.path(), options);
    const Sequences all = some_sequences();
    const auto& tokens = all.back();
    const Matrix<float> whole = decoder.logits(std::span(&tokens, 1));
    std::vector<std::size_t> one_by_one(70);
    std::iota(one_by_one.begin(), one_by_one.end(), 1);
    const std::vector<std::vector<std::size_t>> cuts = {
        {150}, {1, 2, 66, 150}, {63, 64, 65, 149, 150}, {128, 150}, one_by_one};
    for (const auto& ends : cuts) {
      const auto rows = chunked(decoder, tokens, ends);
      for (std::size_t i = 0; i < ends.size(); ++i) {
        ASSERT_TRUE(std::ranges::equal(rows[i], whole.row(ends[i] - 1)))
            << ends.size() << " chunks, token " << ends[i] - 1 << ", window " << windowed;
      }
    }
  }
}

TEST_F(DecoderLaws, PartsOfManySequencesGoTogetherWithoutPadding) {
  Decoder decoder(folder_.path());
  const Sequences all = some_sequences();
  std::vector<KeyValueCache> caches;
  std::vector<SequencePart> parts;
  for (std::size_t s = 0; s < all.size(); ++s) {
    caches.push_back(decoder.make_cache());
  }
  for (std::size_t s = 0; s < all.size(); ++s) {
    parts.push_back({std::span(all[s]).first(all[s].size() / 2), &caches[s]});
  }
  std::int64_t rows = 0;
  decoder.extend(
      parts, [&](const LayerRouting& routing) { rows = std::ssize(routing.ids) / routing.top_k; });
  EXPECT_EQ(rows, 11 / 2 + 64 / 2 + 150 / 2);
  for (std::size_t s = 0; s < all.size(); ++s) {
    parts[s].tokens = std::span(all[s]).subspan(all[s].size() / 2);
  }
  const Matrix<float> together = decoder.extend(parts);
  for (std::size_t s = 0; s < all.size(); ++s) {
    const Matrix<float> alone = decoder.logits(std::span(&all[s], 1));
    if (all[s].empty()) {
      EXPECT_TRUE(std::ranges::all_of(together.row(s), [](float x) { return x == 0; }));
    } else {
      EXPECT_TRUE(std::ranges::equal(together.row(s), alone.row(alone.rows() - 1))) << s;
    }
  }
}

TEST_F(DecoderLaws, ARefusedPartLeavesAllCachesAsTheyWere) {
  Decoder decoder(folder_.path());
  std::vector<KeyValueCache> caches;
  caches.push_back(decoder.make_cache());
  caches.push_back(decoder.make_cache());
  const std::vector<std::int32_t> good = {1, 2, 3};
  const std::vector<std::int32_t> bad = {4, 61};
  const std::vector<std::int32_t> long_one(257, 1);
  const auto extend = [&](std::span<const std::int32_t> a, std::span<const std::int32_t> b,
                          KeyValueCache* second) {
    const std::vector<SequencePart> parts = {{a, &caches[0]}, {b, second}};
    return decoder.extend(parts);
  };
  extend(good, good, &caches[1]);
  EXPECT_NE(refusal_of([&] {
              extend(good, bad, &caches[1]);
            }).second.find("sequence 1, position 4: token id 61"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { extend(good, long_one, &caches[1]); }).second.find("260 tokens"),
            std::string::npos);
  EXPECT_EQ(refusal_of([&] { extend(good, good, &caches[0]); }).first, ErrorCode::kBadInput);
  EXPECT_EQ(caches[0].length(), 3);
  EXPECT_EQ(caches[1].length(), 3);
}

TEST_F(DecoderLaws, ASequenceHasTheSameBitsAloneAndInABatch) {
  Decoder decoder(folder_.path());
  const Sequences all = some_sequences();
  const Matrix<float> together = decoder.logits(all);
  std::size_t first = 0;
  for (const auto& sequence : all) {
    const Matrix<float> alone = decoder.logits(std::span(&sequence, 1));
    ASSERT_EQ(alone.rows(), sequence.size());
    EXPECT_TRUE(std::ranges::equal(
        alone.values(), together.values().subspan(first * alone.columns(), alone.values().size())));
    first += sequence.size();
  }
  EXPECT_EQ(first, together.rows());
}

TEST_F(DecoderLaws, ThreadsAndPlainLoopsDoNotChangeABit) {
  const Sequences batch = some_sequences();
  for (const auto type : {kernels::DType::kFloat32, kernels::DType::kBfloat16}) {
    DecoderOptions options;
    options.weight_type = type;
    options.placement = placement_for(sizes_, 3);
    const Matrix<float> expected = logits(options, batch);
    kernels::Threads threads(3);
    options.execution.threads = &threads;
    EXPECT_EQ(logits(options, batch), expected);
    EXPECT_EQ(logits(options, {batch[4]}),  // fewer sequences than threads
              Decoder(folder_.path(),
                      [&] {
                        DecoderOptions one = options;
                        one.execution.threads = nullptr;
                        return one;
                      }())
                  .logits(std::span(&batch[4], 1)));
    options.moe = MoePath::kPlainLoops;
    EXPECT_EQ(logits(options, batch), expected);
  }
}

TEST_F(DecoderLaws, RanksGiveTheBitsOfOneProcessWithTheSamePlacement) {
  const Sequences batch = some_sequences();
  for (const int num_ranks : {2, 4}) {
    for (const bool shuffled : {false, true}) {
      DecoderOptions options;
      options.placement = placement_for(sizes_, num_ranks, shuffled);
      const Matrix<float> expected = logits(options, batch);
      Matrix<float> found(expected.rows(), expected.columns());
      std::mutex mutex;
      comm::run_ranks(num_ranks, [&](comm::Communicator& communicator) {
        DecoderOptions mine = options;
        mine.communicator = &communicator;
        Sequences own;  // sequences go round; with 4 ranks some have little
        std::vector<std::size_t> first_rows;
        std::size_t row = 0;
        for (std::size_t s = 0; s < batch.size(); ++s) {
          if (static_cast<int>(s) % num_ranks == communicator.rank()) {
            own.push_back(batch[s]);
            first_rows.push_back(row);
          }
          row += batch[s].size();
        }
        const Matrix<float> part = Decoder(folder_.path(), mine).logits(own);
        const std::lock_guard lock(mutex);
        std::size_t from = 0;
        for (std::size_t s = 0; s < own.size(); ++s) {
          for (std::size_t t = 0; t < own[s].size(); ++t) {
            std::ranges::copy(part.row(from++), found.row(first_rows[s] + t).begin());
          }
        }
      });
      EXPECT_EQ(found, expected) << num_ranks << " ranks, shuffled " << shuffled;
    }
  }
}

TEST_F(DecoderLaws, ABrokenExpertSpoilsOnlyTheTokensThatChoseIt) {
  TinyModel sound = sizes_;
  sound.num_layers = 1;  // with more, attention would carry the damage to later tokens
  TinyModel broken = sound;
  broken.nan_expert = 7;
  const ScratchFolder sound_folder;
  const ScratchFolder broken_folder;
  write_tiny_model(sound_folder.path(), sound);
  write_tiny_model(broken_folder.path(), broken);
  const Sequences batch = some_sequences();
  const Matrix<float> expected = Decoder(sound_folder.path()).logits(batch);
  std::vector<bool> spoiled(expected.rows());
  const Matrix<float> found =
      Decoder(broken_folder.path()).logits(batch, [&](const LayerRouting& routing) {
        for (std::size_t i = 0; i < routing.ids.size(); ++i) {
          if (routing.ids[i] == 7) {
            spoiled[i / static_cast<std::size_t>(routing.top_k)] = true;
          }
        }
      });
  EXPECT_GT(std::ranges::count(spoiled, true), 0);
  for (std::size_t t = 0; t < spoiled.size(); ++t) {
    EXPECT_EQ(std::ranges::equal(found.row(t), expected.row(t)), !spoiled[t]) << "token " << t;
  }
}

TEST_F(DecoderLaws, LossesAreThoseOfTheLogits) {
  Decoder decoder(folder_.path());
  const Sequences batch = some_sequences();
  const Matrix<float> logits = decoder.logits(batch);
  const std::vector<double> losses = decoder.losses(batch);
  ASSERT_EQ(losses.size(), logits.rows());
  std::size_t row = 0;
  for (const auto& sequence : batch) {
    for (std::size_t t = 0; t < sequence.size(); ++t, ++row) {
      if (t == 0) {
        EXPECT_EQ(losses[row], 0.0);
        continue;
      }
      const auto before = logits.row(row - 1);
      double sum = 0;
      for (const float logit : before) {
        sum += std::exp(static_cast<double>(logit));
      }
      const double next = before[static_cast<std::size_t>(sequence[t])];
      EXPECT_NEAR(losses[row], std::log(sum) - next, 1e-9);
    }
  }
}

TEST_F(DecoderLaws, BadTokensAndLongSequencesAreRefused) {
  Decoder decoder(folder_.path());
  for (const std::int32_t id : {-1, 61, 2147483647}) {
    const Sequences batch = {{1, 2}, {3, id}};
    const auto [code, message] = refusal_of([&] { decoder.logits(batch); });
    EXPECT_EQ(code, ErrorCode::kBadInput);
    EXPECT_NE(message.find("sequence 1, position 1: token id " + std::to_string(id)),
              std::string::npos)
        << message;
  }
  const Sequences exact = {std::vector<std::int32_t>(256, 1)};
  EXPECT_EQ(decoder.logits(exact).rows(), 256U);
  const Sequences longer = {std::vector<std::int32_t>(257, 1)};
  EXPECT_NE(refusal_of([&] { decoder.logits(longer); }).second.find("257"), std::string::npos);
  EXPECT_EQ(decoder.logits({}).rows(), 0U);
}

TEST_F(DecoderLaws, PlacementsOfOtherModelsAreRefused) {
  const std::string fingerprint = Decoder(folder_.path()).fingerprint();
  const auto refusal = [&](const placement::Placement& placement) {
    DecoderOptions options;
    options.placement = placement;
    return refusal_of([&] { Decoder decoder(folder_.path(), options); });
  };
  placement::Placement good = placement_for(sizes_, 2);
  good.model_fingerprint = fingerprint;
  EXPECT_EQ(refusal(good).second, "");
  placement::Placement other = good;
  other.model_fingerprint = "0123456789abcdef";
  EXPECT_NE(refusal(other).second.find("0123456789abcdef"), std::string::npos);
  placement::Placement fewer = good;
  fewer.layers.pop_back();
  EXPECT_NE(refusal(fewer).second.find("leaves out layer 2"), std::string::npos);
  placement::Placement more = good;
  more.layers.push_back(more.layers.back());
  more.layers.back().layer = 9;
  EXPECT_NE(refusal(more).second.find("layer 9"), std::string::npos);
  TinyModel small = sizes_;
  small.num_experts = 6;
  EXPECT_NE(refusal(placement_for(small, 2)).second.find("6 experts, the model has 8"),
            std::string::npos);
}

TEST_F(DecoderLaws, FingerprintsTellModelsApart) {
  const std::string first = Decoder(folder_.path()).fingerprint();
  EXPECT_EQ(Decoder(folder_.path()).fingerprint(), first);
  EXPECT_EQ(first.size(), 16U);
  for (const int change : {0, 1, 2}) {
    TinyModel sizes;
    sizes.seed += change == 0 ? 1U : 0U;
    sizes.renormalise = change == 1;
    sizes.top_k += change == 2 ? 1 : 0;
    const ScratchFolder folder;
    write_tiny_model(folder.path(), sizes);
    EXPECT_NE(Decoder(folder.path()).fingerprint(), first) << change;
  }
}

TEST_F(DecoderLaws, MissingExtraAndMisshapenTensorsAreNamed) {
  struct Case {
    const char* drop;
    OutgoingTensor add;
    const char* says;
  };
  const std::string expert = "model.layers.1.mlp.experts.5.up_proj.weight";
  const std::vector<Case> cases = {
      {expert.c_str(), counted("unused", ElementType::kU8, {1}, 0), expert.c_str()},
      {"model.layers.0.mlp.gate.weight", counted("unused", ElementType::kU8, {1}, 0),
       "model.layers.0.mlp.gate.weight"},
      {"lm_head.weight", counted("unused", ElementType::kU8, {1}, 0), "lm_head.weight"},
      {"", counted("model.layers.0.mlp.experts.8.up_proj.weight", ElementType::kF32, {1}, 0),
       "experts.8.up_proj"},
      {"", counted("model.layers.0.mlp.gate.e_score_correction_bias", ElementType::kF32, {8}, 0),
       "e_score_correction_bias"},
      {expert.c_str(), counted(expert, ElementType::kF32, {20, 16}, 0), "[20, 16]"},
      {expert.c_str(), counted(expert, ElementType::kF8E4M3, {20, 24}, 0), "F8_E4M3"},
  };
  const Checkpoint whole(folder_.path());
  for (const Case& change : cases) {
    std::vector<OutgoingTensor> tensors = {change.add};
    for (const Tensor& tensor : whole.tensors()) {
      if (tensor.name() != change.drop) {
        tensors.push_back(unchanged(tensor));
      }
    }
    const ScratchFolder folder;
    std::filesystem::copy_file(folder_ / "config.json", folder / "config.json");
    write_checkpoint(folder.path(), tensors);
    const auto [code, message] = refusal_of([&] { Decoder decoder(folder.path()); });
    EXPECT_TRUE(code == ErrorCode::kBadInput || code == ErrorCode::kUnsupported) << message;
    EXPECT_NE(message.find(change.says), std::string::npos) << message;
    EXPECT_NE(message.find(folder.path().string()), std::string::npos) << message;
  }
}

TEST_F(DecoderLaws, AnUntiedHeadBesideATiedConfigIsRefused) {
  Json config = read_json_file(folder_ / "config.json");
  config["tie_word_embeddings"] = true;
  write_json_file(folder_ / "config.json", config);
  const auto [code, message] = refusal_of([&] { Decoder decoder(folder_.path()); });
  EXPECT_EQ(code, ErrorCode::kBadInput);
  EXPECT_NE(message.find("tie_word_embeddings"), std::string::npos) << message;
}

}  // namespace
}  // namespace coterie::models
