// SPDX-License-Identifier: Apache-2.0
#include "coterie/evaluation/task_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"

namespace coterie::evaluation {
namespace {

class TaskFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  Task read(const std::string& text) {
    write_text_file(path_, text);
    return read_task(path_);
  }
  std::string refusal(const std::string& text) {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return error.what();
    }
    return "";
  }
  std::filesystem::path path_ = std::filesystem::path(::testing::TempDir()) /
                                ("sums_" + std::to_string(::getpid()) + ".jsonl");
};

TEST_F(TaskFile, ReadsChoicesAndTargets) {
  const Task choices =
      read(R"({"context": "2 + 2 =", "choices": ["3", "4"], "answer": 1, "id": "ignored"})"
           "\n\n"
           R"({"context": "", "choices": ["a", "b", "c"], "answer": 0})");
  ASSERT_EQ(choices.items.size(), 2U);
  EXPECT_EQ(choices.items[0].choices[1], "4");
  EXPECT_EQ(choices.items[0].answer, 1);
  EXPECT_TRUE(choices.items[1].context.empty());
  EXPECT_EQ(choices.name, "sums_" + std::to_string(::getpid()));
  const Task targets = read(R"({"context": "x", "target": "y", "stop": ["."], "max_new_tokens": 5})"
                            "\r\n");
  ASSERT_EQ(targets.items.size(), 1U);
  EXPECT_FALSE(targets.items[0].is_choice());
  EXPECT_EQ(targets.items[0].stop, std::vector<std::string>{"."});
  EXPECT_EQ(targets.items[0].max_new_tokens, 5);
}

TEST_F(TaskFile, RefusesWithThePlace) {
  const std::string good = R"({"context": "x", "choices": ["a", "b"], "answer": 1})"
                           "\n";
  EXPECT_NE(
      refusal(good + R"({"context": "x", "choices": ["a", "b"], "answer": 2})").find("line 2"),
      std::string::npos);
  EXPECT_NE(refusal(good + R"({"context": "x", "target": "a"})").find("mixed"), std::string::npos);
  EXPECT_NE(refusal(R"({"context": "x", "choices": ["a"], "answer": 0})").find("choices"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"context": "x", "choices": ["a", ""], "answer": 0})").find("empty"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"context": 3, "target": "a"})").find("context"), std::string::npos);
  EXPECT_NE(refusal(R"({"context": "x"})").find("target"), std::string::npos);
  EXPECT_NE(refusal("{").find("line 1"), std::string::npos);
  EXPECT_NE(refusal("\n\n").find("no question"), std::string::npos);
}

}  // namespace
}  // namespace coterie::evaluation
