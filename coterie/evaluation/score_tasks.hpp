// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coterie/base/log.hpp"
#include "coterie/evaluation/task_file.hpp"
#include "coterie/models/models.hpp"

namespace coterie::evaluation {

/// What a model made of one question.
struct ItemScore {
  bool correct = false;             ///< the likeliest choice is right; or the text is the target
  bool correct_normalised = false;  ///< choices by log-likelihood a character; else as `correct`
  std::vector<double> log_likelihoods;  ///< [choices] natural logarithm, of the whole choice
  std::string text;                     ///< what the model wrote
};

struct TaskScore {
  std::string name;
  bool is_choice = false;
  std::vector<ItemScore> items;  ///< in the order of the file

  [[nodiscard]] double accuracy() const;             ///< "acc", or "exact_match" of targets
  [[nodiscard]] double accuracy_normalised() const;  ///< "acc_norm"
};

/// Scores as lm-evaluation-harness does for decoders:
///
///   choice   log p(" " + choice | context): white space at the end of the context is moved to the
///            choice, both are tokenized together without special tokens, and the context's own
///            tokens are cut off; the first of the likeliest choices counts; an empty context is
///            the token <|endoftext|> or </s>. acc_norm divides by the characters of the choice.
///   target   greedy writing up to a stop text or max_new_tokens; equal to the target, white space
///            around both apart.
///
/// Inputs longer than the model allows lose their beginning. kBadInput names task and item for a
/// question without tokens.
TaskScore score_task(models::Decoder& decoder, const models::Tokenizer& tokenizer, const Task& task,
                     std::int64_t batch_tokens = 4096, Progress& progress = NoProgress::instance());

}  // namespace coterie::evaluation
