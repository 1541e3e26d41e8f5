// SPDX-License-Identifier: Apache-2.0
// Traces of text, with the model of `coterie demo`.
#include "coterie/models/record_trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "coterie/plan/routing/routing.hpp"
#include "tests/folders.hpp"
#include "tests/models/scratch_folder.hpp"

namespace coterie::models {
namespace {

const std::filesystem::path kDemo = tests::source_dir() / "demo";

std::filesystem::path demo_text(const std::string& name) {
  return kDemo / "text" / name;
}

class RecordTrace : public testing::Test {
 protected:
  RecordTrace()
      : decoder_(kDemo / "model"),
        tokenizer_(Tokenizer::from_file(kDemo / "model" / "tokenizer.json")) {}

  std::vector<DomainRecord> record(const std::vector<TextSource>& texts,
                                   const RecordOptions& options) {
    return record_trace(decoder_, tokenizer_, texts, options, out_);
  }

  Decoder decoder_;
  Tokenizer tokenizer_;
  ScratchFolder folder_;
  std::filesystem::path out_ = folder_ / "trace.bin";
};

TEST_F(RecordTrace, RowsAreTheModelsChoices) {
  const std::vector<TextSource> texts = {{"prose", demo_text("novels.fit.txt")},
                                         {"code", demo_text("code.fit.txt")},
                                         {"prose", demo_text("novels.heldout.txt")}};
  RecordOptions options;
  options.max_tokens = 75;
  options.sequence_length = 30;
  options.batch_tokens = 64;
  options.with_weights = true;
  const auto records = record(texts, options);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].domain, "prose");
  EXPECT_EQ(records[0].num_files, 2U);
  EXPECT_EQ(records[0].num_tokens, 150U);
  EXPECT_EQ(records[0].num_sequences, 6U);
  EXPECT_EQ(records[1].num_tokens, 75U);
  const auto trace = routing::open_binary_trace(out_);
  EXPECT_EQ(trace->header().model_type, "olmoe");
  EXPECT_EQ(trace->header().model_fingerprint, decoder_.fingerprint());
  EXPECT_EQ(trace->header().domains, (std::vector<std::string>{"prose", "code"}));
  EXPECT_EQ(trace->header().layers, decoder_.config().moe_layers);
  // The second text's rows begin after both of the first domain.
  const auto code = encode_beginning(tokenizer_, read_text_file(texts[1].file), 75);
  std::vector<std::vector<std::int32_t>> batch;
  for (const auto& [begin, end] : std::vector<std::pair<int, int>>{{0, 30}, {30, 60}, {60, 75}}) {
    batch.emplace_back(code.begin() + begin, code.begin() + end);
  }
  std::size_t slot = 0;
  decoder_.route(batch, [&](const LayerRouting& routing) {
    const routing::LayerTrace layer = trace->layer(slot++, true);
    ASSERT_EQ(layer.num_rows(), 225U);
    EXPECT_TRUE(std::ranges::equal(std::span(layer.ids).subspan(150 * 8), routing.ids));
    EXPECT_TRUE(std::ranges::equal(std::span(layer.weights).subspan(150 * 8), routing.weights));
    const routing::TokenInfo& last = layer.tokens->back();
    EXPECT_EQ(last.sequence, 8U);
    EXPECT_EQ(last.position, 14U);
    EXPECT_EQ(last.domain, 1);
  });
  EXPECT_EQ(slot, trace->header().layers.size());
}

TEST_F(RecordTrace, BatchSizeDoesNotChangeAByte) {
  const std::vector<TextSource> texts = {{"a", demo_text("dictionary.fit.txt")}};
  RecordOptions options;
  options.max_tokens = 130;
  options.sequence_length = 25;
  options.batch_tokens = 1;
  record(texts, options);
  const std::string first = read_text_file(out_);
  options.batch_tokens = 100;
  options.with_losses = true;
  const auto records = record(texts, options);
  EXPECT_EQ(read_text_file(out_), first);
  ASSERT_TRUE(records[0].bits_per_byte.has_value());
  EXPECT_GT(*records[0].bits_per_byte, 0.5);
  EXPECT_LT(*records[0].bits_per_byte,
            5.0);  // a model that learned; random guessing has 12 a token
}

TEST_F(RecordTrace, TheBeginningIsThatOfTheWholeText) {
  const std::string text = read_text_file(demo_text("documentation.fit.txt"));
  const auto whole = tokenizer_.encode(text, false);
  for (const std::int64_t count : {1, 2, 100, 3001}) {
    const auto beginning = encode_beginning(tokenizer_, text, count);
    ASSERT_EQ(beginning.size(), static_cast<std::size_t>(count));
    EXPECT_TRUE(std::equal(beginning.begin(), beginning.end(), whole.begin())) << count;
  }
  EXPECT_EQ(encode_beginning(tokenizer_, text, 10'000'000), whole);
  EXPECT_EQ(encode_beginning(tokenizer_, text, 0), whole);
}

TEST_F(RecordTrace, BadTextIsRefusedBeforeAnythingIsWritten) {
  struct Case {
    std::string content;
    std::string says;
  };
  const std::vector<Case> cases = {{"", "empty"},
                                   {" \n\t\r\n", "empty"},
                                   {"caf\xe9 au lait", "0xE9"},
                                   {"\xff\xfeh\0i\0", "UTF-8"},
                                   {"cut \xe2\x82", "UTF-8"}};
  for (const Case& bad : cases) {
    write_text_file(folder_ / "bad.txt", bad.content);
    const std::vector<TextSource> texts = {{"good", demo_text("novels.fit.txt")},
                                           {"bad", folder_ / "bad.txt"}};
    const auto [code, message] = refusal_of([&] { record(texts, {}); });
    EXPECT_EQ(code, ErrorCode::kBadInput) << message;
    EXPECT_NE(message.find(bad.says), std::string::npos) << message;
    EXPECT_NE(message.find("bad.txt"), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
  EXPECT_EQ(refusal_of([&] { record({{"x", folder_ / "none.txt"}}, {}); }).first, ErrorCode::kIo);
  EXPECT_EQ(refusal_of([&] { record({}, {}); }).first, ErrorCode::kBadInput);
  RecordOptions too_long;
  too_long.sequence_length = 1025;
  EXPECT_NE(refusal_of([&] {
              record({{"x", demo_text("novels.fit.txt")}}, too_long);
            }).second.find("1025"),
            std::string::npos);
}

}  // namespace
}  // namespace coterie::models
