// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/json.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "coterie/base/error.hpp"

namespace coterie {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Json, MalformedTextNamesLineAndColumn) {
  const std::string message =
      message_of([] { parse_json("{\n  \"a\": 1,\n  \"b\": }\n", "f.json"); });
  EXPECT_EQ(message.substr(0, 10), "f.json:3:8") << message;
}

TEST(Json, RefusesRepeatedKeysTrailingCommasAndOverflow) {
  EXPECT_NE(message_of([] { parse_json(R"({"a": {"b": 1, "b": 2}})", "f"); }).find("\"b\""),
            std::string::npos);
  EXPECT_NO_THROW(parse_json(R"({"a": {"b": 1}, "c": {"b": 2}})", "f"));
  message_of([] { parse_json("[1,]", "f"); });
  message_of([] { parse_json("[1e400]", "f"); });
  message_of([] { parse_json("", "f"); });
}

TEST(Json, AZeroByteIsNoEnd) {
  using std::string_view_literals::operator""sv;
  EXPECT_THROW(parse_json("{\"a\": 1}\0"sv, "x.json"), Error);
  EXPECT_THROW(parse_json("{\"a\": 1}\0{\"b\": 2}"sv, "x.json"), Error);
}

TEST(Json, DepthIsBoundedAndManyKeysAreQuick) {
  message_of([] { parse_json(std::string(100'000, '['), "f"); });
  EXPECT_NO_THROW(parse_json(std::string(150, '[') + std::string(150, ']'), "f"));
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) {
    text += "\"key" + std::to_string(i) + "\": " + std::to_string(i) + ",";
  }
  const Json document = parse_json(text + "\"last\": 1}", "f");
  EXPECT_EQ(document.size(), 200'001U);
  EXPECT_NE(message_of([&] { parse_json(text + "\"key77\": 1}", "f"); }).find("key77"),
            std::string::npos);
}

TEST(Json, ReaderSaysPathExpectationAndValue) {
  const Json document = parse_json(R"({"layers": [{"top_k": 99}]})", "f.json");
  const JsonReader reader(document, "f.json");
  EXPECT_EQ(message_of([&] { std::ignore = reader.at("layers").at(0).at("top_k").as_int(1, 64); }),
            "f.json: /layers/0/top_k: expected a whole number in [1, 64], found 99");
  EXPECT_EQ(message_of([&] { std::ignore = reader.at("model"); }),
            "f.json: key \"model\" is missing");
  EXPECT_EQ(message_of([&] { std::ignore = reader.at("layers").at(1); }),
            "f.json: /layers: item 1 is missing: there are 1");
}

TEST(Json, IntegersMustBeIntegers) {
  const Json document = parse_json("[1.0, 18446744073709551615, -3]", "f");
  const JsonReader reader(document, "f");
  message_of([&] { std::ignore = reader.at(0).as_int(); });
  message_of([&] { std::ignore = reader.at(1).as_int(); });
  EXPECT_EQ(reader.at(2).as_int(), -3);
}

TEST(Json, FormatKeepsNumberListsOnOneLineAndRoundTrips) {
  const Json document = parse_json(R"({"z": [[1, 2], [3]], "a": {}, "t": "x\ny"})", "f");
  const std::string text = format_json(document);
  EXPECT_NE(text.find("    [1,2]"), std::string::npos) << text;
  EXPECT_EQ(parse_json(text, "f"), document);
}

}  // namespace
}  // namespace coterie
