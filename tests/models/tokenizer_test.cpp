// SPDX-License-Identifier: Apache-2.0
#include "coterie/models/tokenizer.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "coterie/models/streaming_decoder.hpp"
#include "coterie/models/tokenizer_regex.hpp"
#include "coterie/models/tokenizer_unicode.hpp"
#include "tests/folders.hpp"

namespace coterie::models {
namespace {

using Ids = std::vector<std::int32_t>;

const Json& vectors() {
  static const Json document =
      read_json_file(tests::source_dir() / "tests/golden/tokenizer_vectors.json");
  return document;
}

/// The tokenizer.json of one kind in the vectors.
Json file_of(const std::string& kind) {
  for (const Json& one : vectors()["cases"]) {
    if (one["kind"] == kind) {
      return one["tokenizer"];
    }
  }
  ADD_FAILURE() << "no kind " << kind;
  return {};
}

Tokenizer make(const Json& file) {
  return Tokenizer::from_json(file.dump(), "tokenizer.json");
}

std::string message_of(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_refusal(ErrorCode code, const Json& file, const std::string& part) {
  const std::string message = message_of(code, [&] { make(file); });
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.rfind("tokenizer.json: ", 0), 0U) << message;
}

TEST(Tokenizer, GivesTheIdsOfTheReferenceForEveryKind) {
  const Json& texts = vectors()["texts"];
  for (const Json& one : vectors()["cases"]) {
    const Tokenizer tokenizer = make(one["tokenizer"]);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const Ids ids = tokenizer.encode(texts[i].get<std::string>());
      EXPECT_EQ(ids, one["ids"][i].get<Ids>()) << one["kind"] << " " << texts[i];
      EXPECT_EQ(tokenizer.decode(ids), one["decoded"][i].get<std::string>()) << one["kind"];
    }
  }
}

TEST(Tokenizer, ThreadsShareOneObject) {
  const Tokenizer tokenizer = make(file_of("neox"));
  const Json& texts = vectors()["texts"];
  std::vector<Ids> expected;
  for (const Json& text : texts) {
    expected.push_back(tokenizer.encode(text.get<std::string>()));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const std::size_t at = (i + t * 7) % texts.size();
        wrong[t] += tokenizer.encode(texts[at].get<std::string>()) != expected[at] ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, EmptyTextIsItsSpecialTokens) {
  const Tokenizer tokenizer = make(file_of("neox"));
  EXPECT_TRUE(tokenizer.encode("", false).empty());
  EXPECT_EQ(tokenizer.encode("").size(), 2U);
  EXPECT_EQ(tokenizer.decode(Ids{}), "");
  EXPECT_EQ(tokenizer.encode("")[0], tokenizer.token_to_id("<|endoftext|>"));
  EXPECT_FALSE(tokenizer.token_to_id("no such token"));
}

TEST(Tokenizer, TextThatIsNotUtf8NamesTheByte) {
  const Tokenizer tokenizer = make(file_of("gpt2_prefix"));
  const auto message = [&](const std::string& text) {
    return message_of(ErrorCode::kBadInput, [&] { std::ignore = tokenizer.encode(text); });
  };
  EXPECT_EQ(message("caf\xE9 noir"), "text: line 1, byte 3: 0xE9 is not UTF-8");
  EXPECT_EQ(message("a\nb\xE2\x82"), "text: line 2, byte 3: 0xE2 is not UTF-8");
  EXPECT_NE(message(std::string("\xFF\xFE\x41\x00", 4)).find("UTF-16"), std::string::npos);
  message("\xED\xA0\x80");      // a surrogate
  message("\xC0\x80");          // overlong
  message("\xF4\x90\x80\x80");  // past U+10FFFF
}

TEST(Tokenizer, IdsThatAreNoTokensAreRefused) {
  const Tokenizer tokenizer = make(file_of("gpt2_prefix"));
  for (const std::int32_t id : {-1, tokenizer.vocab_size(), 2'147'483'647}) {
    const std::string message = message_of(ErrorCode::kBadInput, [&] {
      std::ignore = tokenizer.decode(Ids{0, id});
    });
    EXPECT_NE(message.find("token 1: id " + std::to_string(id)), std::string::npos) << message;
  }
}

TEST(Tokenizer, ACutCharacterDecodesToTheReplacementCharacter) {
  const Tokenizer tokenizer = make(file_of("llama3"));
  Ids ids = tokenizer.encode("\U0001F9FF", false);
  ASSERT_GT(ids.size(), 1U);
  ids.pop_back();
  EXPECT_EQ(tokenizer.decode(ids), "\uFFFD");
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x8E!\xFFz"), "a\uFFFD!\uFFFDz");
}

TEST(Tokenizer, RefusesWhatItDoesNotKnowByName) {
  const Json good = file_of("neox");
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json file = good;
    file[Json::json_pointer(pointer)] = value;
    return file;
  };
  const ErrorCode unsupported = ErrorCode::kUnsupported;
  expect_refusal(unsupported, with("/model/type", "Unigram"), "model Unigram");
  expect_refusal(unsupported, with("/model/byte_fallback", true), "byte_fallback");
  expect_refusal(unsupported, with("/model/dropout", 0.1), "dropout");
  expect_refusal(unsupported, with("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix");
  expect_refusal(unsupported, with("/normalizer", Json{{"type", "BertNormalizer"}}),
                 "BertNormalizer");
  expect_refusal(unsupported, with("/pre_tokenizer", Json{{"type", "BertPreTokenizer"}}),
                 "BertPreTokenizer");
  const Json two = {{"type", "Metaspace"}, {"replacement", "__"}, {"prepend_scheme", "first"}};
  expect_refusal(ErrorCode::kBadInput, with("/pre_tokenizer", two), "one character");
  Json twice = two;
  twice["replacement"] = "_";
  twice["prepend_scheme"] = "second";
  expect_refusal(ErrorCode::kBadInput, with("/pre_tokenizer", twice), "always, first or never");
  expect_refusal(unsupported, with("/decoder", Json{{"type", "WordPiece"}}), "WordPiece");
  expect_refusal(unsupported, with("/post_processor", Json{{"type", "BertProcessing"}}),
                 "BertProcessing");
}

TEST(StreamingDecoder, GivesWholeCharactersOnly) {
  const Tokenizer tokenizer = make(file_of("llama3"));
  const std::string text = "a \xF0\x9F\x8F\xB3 b";
  StreamingDecoder stream(tokenizer);
  std::string all;
  for (const std::int32_t id : tokenizer.encode(text, false)) {
    const std::string part = stream.push(id);
    EXPECT_EQ(find_invalid_utf8(part), part.size());
    EXPECT_EQ(part.find("\xEF\xBF\xBD"), std::string::npos);
    all += part;
  }
  EXPECT_EQ(all, text);
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamingDecoder, ABadIdIsRefusedAndTheRestGoesOn) {
  const Tokenizer tokenizer = make(file_of("llama3"));
  const std::vector<std::int32_t> ids = tokenizer.encode("\xF0\x9F\x8F\xB3", false);
  ASSERT_GT(ids.size(), 1U);
  StreamingDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(ids[0]), "");
  for (const std::int32_t id : {-1, tokenizer.vocab_size()}) {
    const std::string message = message_of(ErrorCode::kBadInput, [&] { stream.push(id); });
    EXPECT_NE(message.find("id " + std::to_string(id)), std::string::npos) << message;
  }
  std::string all;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    all += stream.push(ids[i]);
  }
  EXPECT_EQ(all, "\xF0\x9F\x8F\xB3");
  // A text that ends within a character, then another text.
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push(tokenizer.encode("x", false)[0]), "x");
}

/// As files converted from SentencePiece are: "\u2581" is a space, bytes are tokens 4 to 259.
Json sentencepiece_file() {
  const std::string space = "\xE2\x96\x81";
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {space, 2}, {"a", 3}, {space + "a", 260}};
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (std::size_t byte = 0; byte < 256; ++byte) {
    vocabulary[std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = 4 + byte;
  }
  return {{"added_tokens", Json::array()},
          {"pre_tokenizer",
           {{"type", "Metaspace"},
            {"replacement", space},
            {"prepend_scheme", "first"},
            {"split", false}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"fuse_unk", true},
            {"unk_token", "<unk>"},
            {"vocab", vocabulary},
            {"merges", Json::array({space + " a"})}}}};
}

TEST(Tokenizer, SpacesAndUnknownCharactersAsInSentencePiece) {
  const Tokenizer tokenizer = make(sentencepiece_file());
  EXPECT_EQ(tokenizer.encode("a a\xC3\xA9"), (Ids{260, 260, 4 + 0xC3, 4 + 0xA9}));
  EXPECT_EQ(tokenizer.encode(" a"), (Ids{260}));
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.decode(Ids{260, 260, 4 + 0xC3, 4 + 0xA9}), "a a\xC3\xA9");
  // A run of bytes that is no UTF-8: each is U+FFFD, and a stream waits for the end of the run.
  EXPECT_EQ(tokenizer.decode(Ids{3, 4 + 0xC3, 4 + 'x', 3}),
            "a\xEF\xBF\xBD\xEF\xBF\xBD"
            "a");
  StreamingDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(260), "a");
  EXPECT_EQ(stream.push(4 + 0xC3), "");
  EXPECT_EQ(stream.push(4 + 0xA9), "");
  EXPECT_EQ(stream.push(260), "\xC3\xA9 a");
  EXPECT_EQ(stream.push(4 + 0xC3), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push(260), "a");
}

TEST(Tokenizer, RefusesDamagedFiles) {
  const Json good = file_of("neox");
  const auto with = [&](const std::string& pointer, const Json& value) {
    Json file = good;
    file[Json::json_pointer(pointer)] = value;
    return file;
  };
  const ErrorCode bad = ErrorCode::kBadInput;
  expect_refusal(bad, with("/model/vocab/a", -1), "-1");
  expect_refusal(bad, with("/model/vocab/a", 1LL << 40), "1099511627776");
  expect_refusal(bad, with("/model/vocab/a", good["model"]["vocab"]["b"]), "share id");
  expect_refusal(bad, with("/model/merges/0", Json::array({"a", "no such"})), "/model/merges/0");
  expect_refusal(bad, with("/model/merges/0", "one two three"), "/model/merges/0");
  expect_refusal(bad, with("/model/unk_token", "missing"), "unk_token");
  expect_refusal(bad, with("/added_tokens/0/id", 3), "/added_tokens/0");
  expect_refusal(bad, with("/post_processor", Json{{"type", "TemplateProcessing"}}), "single");
  expect_refusal(bad, Json::object(), "model");
  expect_refusal(bad, Json::array(), "an object");
  message_of(bad, [] { Tokenizer::from_json("{\"model\": ", "tokenizer.json"); });
  message_of(ErrorCode::kIo, [] { Tokenizer::from_file("/nonexistent/tokenizer.json"); });
}

TEST(Pattern, MeansWhatItMeansToOniguruma) {
  const auto matches = [](const std::string& pattern, const std::string& text) {
    std::vector<ByteRange> found;
    Regex(pattern, "here").find_all(text, found);
    std::vector<std::string> parts;
    for (const ByteRange& range : found) {
      parts.push_back(text.substr(range.begin, range.end - range.begin));
    }
    return parts;
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(matches("a{1,3}+", "aaaaaaab"), Parts{"aaaaaaa"});
  EXPECT_EQ(matches("(?:ab|c){2,3}+!", "abcabcab!"), Parts{"abcabcab!"});
  EXPECT_EQ(matches("a{,2}b", "aaab b"), (Parts{"aab", "b"}));
  EXPECT_EQ(matches("\\h+", "fz \tq0"), (Parts{"f", "0"}));
  EXPECT_EQ(matches("\\s+", "a\u180Eb\u0085c"), Parts{"\u0085"});
  EXPECT_EQ(matches("a$", "a\na"), (Parts{"a", "a"}));
  EXPECT_EQ(matches("x*", "ab"), (Parts{"", "", ""}));
  EXPECT_EQ(matches("\\w+", "b\u00B2\u2167_-\u1369"), Parts{"b\u00B2\u2167_"});
  EXPECT_EQ(matches("\\u0041", "xA"), Parts{"A"});
  EXPECT_EQ(matches(Regex::escape("a.{2}[x]"), "aXX a.{2}[x]"), Parts{"a.{2}[x]"});
  for (const char* refused :
       {"\\bx", "[a[b]]", "[a&&b]", "(?<name>x)", "(a)\\1", "(?m:.)", "[\\S]"}) {
    message_of(ErrorCode::kUnsupported, [&] { Regex(refused, "here"); });
  }
  for (const char* malformed : {"*", "a{3,1}", "\\p{Nonsense}", "(?:a"}) {
    EXPECT_NE(message_of(ErrorCode::kBadInput, [&] { Regex(malformed, "here"); }).find("here: "),
              std::string::npos);
  }
}

TEST(Pattern, ACatastrophicPatternEndsInAnError) {
  const std::string text = std::string(5000, 'a') + "bc";
  std::vector<ByteRange> found;
  const std::string message = message_of(ErrorCode::kBadInput, [&] {
    Regex("(?:a|a|aa)+c", "tokenizer.json: /pre_tokenizer").find_all(text, found);
  });
  EXPECT_NE(message.find("/pre_tokenizer"), std::string::npos) << message;
}

TEST(Unicode, NormalFormsLeaveYoungCharactersAlone) {
  EXPECT_EQ(normalize("e\u0301 x\u0323\u0307", NormalForm::kNfc), "\u00E9 \u1E8B\u0323");
  EXPECT_EQ(normalize("\u00E9\uFB01", NormalForm::kNfkd), "e\u0301fi");
  EXPECT_EQ(normalize("\u0301\u1DF6\u0323", NormalForm::kNfc), "\u0301\u1DF6\u0323");
  EXPECT_EQ(normalize("abc", NormalForm::kNfc), "abc");
}

}  // namespace
}  // namespace coterie::models
