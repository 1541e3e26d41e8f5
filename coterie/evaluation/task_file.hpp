// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace coterie::evaluation {

/// One question. With choices: multiple choice. Without: the model writes, and its text is compared
/// with `target`.
struct TaskItem {
  std::string context;
  std::vector<std::string> choices;
  std::int32_t answer = 0;                 ///< index of the right choice
  std::string target;                      ///< without choices
  std::vector<std::string> stop = {"\n"};  ///< texts that end the writing
  std::int32_t max_new_tokens = 32;

  [[nodiscard]] bool is_choice() const { return !choices.empty(); }
  bool operator==(const TaskItem&) const = default;
};

struct Task {
  std::string name;  ///< of the file, without its ending
  std::vector<TaskItem> items;
};

/// Reads JSON lines, one question a line (docs/file_formats.md); the same files serve
/// lm-evaluation-harness (doc_to_text context, doc_to_choice choices, doc_to_target answer or
/// target). All items of a file are of one kind. kBadInput names file, line and key.
Task read_task(const std::filesystem::path& path);

}  // namespace coterie::evaluation
