// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/score_tasks.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "coterie/base/error.hpp"
#include "coterie/evaluation/bits_per_byte.hpp"
#include "tests/folders.hpp"

namespace coterie::evaluation {
namespace {

const std::filesystem::path kModel = tests::source_dir() / "demo/model";

class ScoreTasks : public ::testing::Test {
 protected:
  models::Decoder decoder_{kModel};
  models::Tokenizer tokenizer_ = models::Tokenizer::from_file(kModel / "tokenizer.json");

  /// log p of the last tokens of a sequence, from its logits.
  double log_likelihood(const std::vector<std::int32_t>& ids, std::size_t num_scored) {
    const Matrix<float> logits = decoder_.logits({&ids, 1});
    double sum = 0;
    for (std::size_t t = ids.size() - num_scored; t < ids.size(); ++t) {
      const auto row = logits.row(t - 1);
      double normaliser = 0;
      for (const float logit : row) {
        normaliser += std::exp(static_cast<double>(logit));
      }
      sum += static_cast<double>(row[static_cast<std::size_t>(ids[t])]) - std::log(normaliser);
    }
    return sum;
  }
};

TEST_F(ScoreTasks, ChoicesAreScoredAfterTheirContext) {
  Task task{"words", {}};
  task.items.push_back({"It was a bright cold day in", {"April", "the", "qqqqqq"}, 0, "", {}, 0});
  task.items.push_back({"def main():\n    ", {"return", "zebra zebra"}, 0, "", {}, 0});
  const TaskScore score = score_task(decoder_, tokenizer_, task, 8);
  ASSERT_TRUE(score.is_choice);
  ASSERT_EQ(score.items.size(), 2U);
  for (std::size_t c = 0; c < 3; ++c) {
    const std::string context = task.items[0].context;
    const auto ids = tokenizer_.encode(context + " " + task.items[0].choices[c], false);
    const std::size_t before = tokenizer_.encode(context, false).size();
    EXPECT_NEAR(score.items[0].log_likelihoods[c], log_likelihood(ids, ids.size() - before), 1e-4);
  }
  // White space at the end of the context belongs to the choice.
  const auto ids = tokenizer_.encode("def main():\n     return", false);
  const std::size_t before = tokenizer_.encode("def main():", false).size();
  EXPECT_NEAR(score.items[1].log_likelihoods[0], log_likelihood(ids, ids.size() - before), 1e-4);
  EXPECT_EQ(score_task(decoder_, tokenizer_, task, 4096).items[0].log_likelihoods,
            score.items[0].log_likelihoods);
}

TEST_F(ScoreTasks, WritesGreedilyUpToAStop) {
  Task task{"write", {}};
  task.items.push_back({"The cat sat on the", {}, 0, "", {"."}, 12});
  const TaskScore first = score_task(decoder_, tokenizer_, task);
  ASSERT_FALSE(first.is_choice);
  EXPECT_FALSE(first.items[0].text.empty());
  EXPECT_EQ(first.items[0].text.find('.'), std::string::npos);
  EXPECT_EQ(first.accuracy(), 0);
  task.items[0].target = " " + first.items[0].text + " ";
  EXPECT_EQ(score_task(decoder_, tokenizer_, task).accuracy(), 1);
  // The first token is the likeliest.
  const auto ids = tokenizer_.encode("The cat sat on the", false);
  const Matrix<float> logits = decoder_.logits({&ids, 1});
  const auto last = logits.row(logits.rows() - 1);
  const auto best =
      static_cast<std::int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
  EXPECT_EQ(first.items[0].text.find(tokenizer_.decode({&best, 1}, false)), 0U);
}

TEST_F(ScoreTasks, LongInputsLoseTheirBeginning) {
  std::string context;
  for (int i = 0; i < 3000; ++i) {
    context += " word";
  }
  Task task{"long", {}};
  task.items.push_back({context, {"word", "zebra"}, 0, "", {}, 0});
  const TaskScore score = score_task(decoder_, tokenizer_, task);
  EXPECT_TRUE(score.items[0].correct);
}

TEST_F(ScoreTasks, BitsPerByteAddUp) {
  const std::vector<models::TextSource> texts = {
      {"novels", tests::source_dir() / "demo/text/novels.heldout.txt"}};
  SequenceOptions options;
  options.max_tokens = 300;
  options.sequence_length = 128;
  options.batch_tokens = 200;
  const auto domains = read_domains(decoder_, tokenizer_, texts, options);
  ASSERT_EQ(domains[0].sequences.size(), 3U);
  const auto scores = score_domains(decoder_, tokenizer_, domains, options);
  ASSERT_EQ(scores.size(), 1U);
  EXPECT_EQ(scores[0].num_tokens, 300);
  double bits = 0;
  for (std::size_t s = 0; s < 3; ++s) {
    const auto& ids = domains[0].sequences[s];
    bits -= log_likelihood(ids, ids.size() - 1) / std::log(2.0);
  }
  double bytes = 0;
  for (const double count : scores[0].bytes) {
    bytes += count;
  }
  EXPECT_NEAR(scores[0].bits_per_byte(), bits / bytes, 1e-5);
  EXPECT_THROW((void)read_domains(decoder_, tokenizer_, {}, options), Error);
  options.sequence_length = 1 << 20;
  EXPECT_THROW((void)read_domains(decoder_, tokenizer_, texts, options), Error);
}

}  // namespace
}  // namespace coterie::evaluation
