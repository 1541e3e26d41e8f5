// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/task_file.hpp"

#include <algorithm>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"

namespace coterie::evaluation {
namespace {

std::vector<std::string> texts_of(const JsonReader& list) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < list.size(); ++i) {
    texts.push_back(list.at(i).as_string());
  }
  return texts;
}

TaskItem item_of(const JsonReader& reader) {
  TaskItem item;
  item.context = reader.at("context").as_string();
  if (reader.has("choices")) {
    item.choices = texts_of(reader.at("choices"));
    if (item.choices.size() < 2) {
      reader.at("choices").refuse("at least two choices");
    }
    if (std::any_of(item.choices.begin(), item.choices.end(),
                    [](const std::string& choice) { return choice.empty(); })) {
      reader.at("choices").refuse("choices that are not empty");
    }
    item.answer =
        static_cast<std::int32_t>(reader.at("answer").as_int(0, std::ssize(item.choices) - 1));
    return item;
  }
  item.target = reader.at("target").as_string();
  if (reader.has("stop")) {
    item.stop = texts_of(reader.at("stop"));
  }
  if (reader.has("max_new_tokens")) {
    item.max_new_tokens = static_cast<std::int32_t>(reader.at("max_new_tokens").as_int(1, 1 << 20));
  }
  return item;
}

}  // namespace

Task read_task(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  Task task{path.stem().string(), {}};
  std::size_t number = 0;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    start = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string place = path.string() + ": line " + std::to_string(number);
    const Json document = parse_json(line, place);
    task.items.push_back(item_of(JsonReader(document, place)));
    COTERIE_REQUIRE(task.items.back().is_choice() == task.items.front().is_choice(), place,
                    ": choices and targets are mixed in one file");
  }
  COTERIE_REQUIRE(!task.items.empty(), path.string(), ": no question");
  return task;
}

}  // namespace coterie::evaluation
