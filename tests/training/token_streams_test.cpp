// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/token_streams.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "tests/folders.hpp"
#include "tests/models/scratch_folder.hpp"

namespace coterie::training {
namespace {

TEST(TokenStreamsTest, TextFilesFollowEachOtherAfterSeparators) {
  const models::ScratchFolder scratch;
  const auto tokenizer =
      models::Tokenizer::from_file(tests::source_dir() / "demo" / "model" / "tokenizer.json");
  write_text_file(scratch.path() / "a.txt", "The quick brown fox");
  write_text_file(scratch.path() / "b.txt", "jumps");
  const TextSource source{"both", {"a.txt", "b.txt"}, 1};
  const TokenStream stream = read_token_stream(source, scratch.path(), &tokenizer, 0, 4096);
  std::vector<std::int32_t> expected = {0};
  for (const char* text : {"The quick brown fox", "jumps"}) {
    const auto ids = tokenizer.encode(text, false);
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(0);
  }
  expected.pop_back();
  EXPECT_EQ(stream.token_ids, expected);
  EXPECT_EQ(stream.num_bytes, 24);
}

TEST(TokenStreamsTest, TokenFilesAreReadAndChecked) {
  const models::ScratchFolder scratch;
  write_text_file(scratch.path() / "x.tokens", std::string("\x01\x00\xFF\x0F", 4));
  const TextSource source{"x", {"x.tokens"}, 1};
  EXPECT_EQ(read_token_stream(source, scratch.path(), nullptr, -1, 4096).token_ids,
            (std::vector<std::int32_t>{1, 4095}));
  try {
    read_token_stream(source, scratch.path(), nullptr, -1, 4095);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("x.tokens"), std::string::npos);
    EXPECT_NE(text.find("token 1 is 4095"), std::string::npos) << text;
  }
  write_text_file(scratch.path() / "odd.tokens", "abc");
  EXPECT_THROW(read_token_stream({"x", {"odd.tokens"}, 1}, scratch.path(), nullptr, -1, 4096),
               Error);
  EXPECT_THROW(read_token_stream({"x", {"none.txt"}, 1}, scratch.path(), nullptr, -1, 4096), Error);
}

}  // namespace
}  // namespace coterie::training
