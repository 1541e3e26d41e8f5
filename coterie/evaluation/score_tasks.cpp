// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/score_tasks.hpp"

#include <algorithm>
#include <numeric>

#include "coterie/base/error.hpp"
#include "coterie/evaluation/text_sequences.hpp"

namespace coterie::evaluation {
namespace {

using Ids = std::vector<std::int32_t>;

std::size_t num_characters(const std::string& utf8) {
  return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
  }));
}

std::string stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// What stands before an empty context.
std::int32_t prefix_token(const models::Tokenizer& tokenizer, const std::string& place) {
  for (const char* name : {"<|endoftext|>", "</s>", "<s>"}) {
    if (const auto id = tokenizer.token_to_id(name)) {
      return *id;
    }
  }
  fail(ErrorCode::kBadInput, place,
       ": the context is empty and the tokenizer has none of <|endoftext|>, </s>, <s>");
}

/// A sequence whose last `num_scored` tokens count.
struct Scored {
  Ids ids;
  std::size_t num_scored = 0;
};

Scored with_choice(const models::Tokenizer& tokenizer, std::string context, std::string choice,
                   const std::string& place) {
  choice = " " + choice;
  const std::size_t kept = context.find_last_not_of(" \t\r\n") + 1;  // 0 if there is none
  choice = context.substr(kept) + choice;
  context.resize(kept);
  Scored scored;
  if (context.empty()) {
    scored.ids = tokenizer.encode(choice, false);
    scored.num_scored = scored.ids.size();
    scored.ids.insert(scored.ids.begin(), prefix_token(tokenizer, place));
  } else {
    scored.ids = tokenizer.encode(context + choice, false);
    const std::size_t before = tokenizer.encode(context, false).size();
    scored.num_scored = scored.ids.size() - std::min(before, scored.ids.size());
  }
  COTERIE_REQUIRE(scored.num_scored > 0, place, ": choice \"", choice, "\" adds no token");
  return scored;
}

/// Cuts the beginning off; of an input of more than the model allows, every scored token that is
/// left still has one before it.
void fit_length(Scored& scored, std::int64_t max_positions) {
  const auto limit = static_cast<std::size_t>(max_positions);
  if (scored.ids.size() > limit) {
    scored.ids.erase(scored.ids.begin(), scored.ids.end() - static_cast<std::ptrdiff_t>(limit));
    scored.num_scored = std::min(scored.num_scored, limit - 1);
  }
}

/// log p of the scored tokens of each sequence.
std::vector<double> log_likelihoods(models::Decoder& decoder, const std::vector<Scored>& inputs,
                                    std::int64_t batch_tokens, Progress& progress) {
  std::vector<Ids> sequences;
  for (const Scored& input : inputs) {
    sequences.push_back(input.ids);
  }
  std::vector<double> sums;
  const auto bounds = cut_batches(sequences, batch_tokens);
  for (std::size_t b = 0; b + 1 < bounds.size(); ++b) {
    const std::vector<double> losses =
        decoder.losses(std::span(sequences).subspan(bounds[b], bounds[b + 1] - bounds[b]));
    std::size_t end = 0;
    for (std::size_t s = bounds[b]; s < bounds[b + 1]; ++s) {
      end += sequences[s].size();
      double sum = 0;
      for (std::size_t t = end - inputs[s].num_scored; t < end; ++t) {
        sum -= losses[t];
      }
      sums.push_back(sum);
    }
    progress.update(static_cast<std::int64_t>(bounds[b + 1]));
  }
  return sums;
}

std::size_t first_largest(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

void score_choices(models::Decoder& decoder, const models::Tokenizer& tokenizer, const Task& task,
                   std::int64_t batch_tokens, Progress& progress, TaskScore& score) {
  std::vector<Scored> inputs;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const std::string place = task.name + ": item " + std::to_string(i);
    for (const std::string& choice : task.items[i].choices) {
      inputs.push_back(with_choice(tokenizer, task.items[i].context, choice, place));
      fit_length(inputs.back(), decoder.config().max_positions);
    }
  }
  progress.begin("scoring choices", std::ssize(inputs));
  const std::vector<double> sums = log_likelihoods(decoder, inputs, batch_tokens, progress);
  progress.end();
  std::size_t at = 0;
  for (const TaskItem& item : task.items) {
    ItemScore result;
    std::vector<double> by_character;
    for (const std::string& choice : item.choices) {
      result.log_likelihoods.push_back(sums[at]);
      by_character.push_back(sums[at++] / static_cast<double>(num_characters(choice)));
    }
    const auto answer = static_cast<std::size_t>(item.answer);
    result.correct = first_largest(result.log_likelihoods) == answer;
    result.correct_normalised = first_largest(by_character) == answer;
    score.items.push_back(std::move(result));
  }
}

/// The place of the first stop text, or npos.
std::size_t find_stop(const std::string& text, const TaskItem& item) {
  std::size_t first = std::string::npos;
  for (const std::string& stop : item.stop) {
    if (!stop.empty()) {
      first = std::min(first, text.find(stop));
    }
  }
  return first;
}

/// Greedy writing without a cache: every step computes the whole sequence.
std::string write_answer(models::Decoder& decoder, const models::Tokenizer& tokenizer,
                         const TaskItem& item, const std::string& place) {
  Ids ids = item.context.empty() ? Ids{prefix_token(tokenizer, place)}
                                 : tokenizer.encode(item.context, false);
  COTERIE_REQUIRE(!ids.empty(), place, ": the context gives no tokens");
  const auto limit = static_cast<std::ptrdiff_t>(decoder.config().max_positions);
  Ids written;
  std::string text;
  while (std::ssize(written) < item.max_new_tokens) {
    if (std::ssize(ids) > limit) {
      ids.erase(ids.begin(), ids.end() - limit);
    }
    const Matrix<float> logits = decoder.logits({&ids, 1});
    const auto last = logits.row(logits.rows() - 1);
    const auto next =
        static_cast<std::int32_t>(std::max_element(last.begin(), last.end()) - last.begin());
    if (next >= tokenizer.vocab_size()) {
      break;  // an id that fills the matrix up
    }
    ids.push_back(next);
    written.push_back(next);
    text = tokenizer.decode(written, false);
    if (const std::size_t stop = find_stop(text, item); stop != std::string::npos) {
      return text.substr(0, stop);
    }
  }
  return text;
}

double mean_of(const std::vector<ItemScore>& items, bool ItemScore::*member) {
  const auto count = std::count_if(items.begin(), items.end(),
                                   [&](const ItemScore& item) { return item.*member; });
  return items.empty() ? 0 : static_cast<double>(count) / static_cast<double>(items.size());
}

}  // namespace

double TaskScore::accuracy() const {
  return mean_of(items, &ItemScore::correct);
}
double TaskScore::accuracy_normalised() const {
  return mean_of(items, &ItemScore::correct_normalised);
}

TaskScore score_task(models::Decoder& decoder, const models::Tokenizer& tokenizer, const Task& task,
                     std::int64_t batch_tokens, Progress& progress) {
  TaskScore score{task.name, !task.items.empty() && task.items.front().is_choice(), {}};
  if (score.is_choice) {
    score_choices(decoder, tokenizer, task, batch_tokens, progress, score);
    return score;
  }
  progress.begin("writing answers", std::ssize(task.items));
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const TaskItem& item = task.items[i];
    ItemScore result;
    result.text = write_answer(decoder, tokenizer, item, task.name + ": item " + std::to_string(i));
    result.correct = stripped(result.text) == stripped(item.target);
    result.correct_normalised = result.correct;
    score.items.push_back(std::move(result));
    progress.update(std::ssize(score.items));
  }
  progress.end();
  return score;
}

}  // namespace coterie::evaluation
