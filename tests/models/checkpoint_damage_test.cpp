// SPDX-License-Identifier: Apache-2.0
// Every damage of a checkpoint is refused when it is opened, with file, tensor and sizes.
#include <gtest/gtest.h>

#include "tests/models/scratch_folder.hpp"

namespace coterie::models {
namespace {

struct Damage {
  const char* name;
  std::string bytes;
  std::vector<std::string> says;  ///< what the message must hold
};

std::string entry(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string one(const std::string& type, const std::string& shape, const std::string& offsets) {
  std::string header = R"({"w":)" + entry(type, shape, offsets) + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

std::string two(const std::string& first, const std::string& second) {
  std::string header =
      R"({"a":)" + entry("F32", "[2]", first) + R"(,"b":)" + entry("F32", "[2]", second) + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

std::vector<Damage> damages() {
  const std::string good = one("F32", "[2,2]", "[0,16]");
  const std::string huge = "9223372036854775807";
  return {
      {"empty file", "", {"truncated", "has 0"}},
      {"seven bytes", "1234567", {"truncated", "has 7"}},
      {"header longer than the file", with_length(1000, "{}"), {"needs 1008", "has 10"}},
      {"header of absurd length", with_length(~0ULL, "{}"), {"18446744073709551615", "limit"}},
      {"no JSON", safetensors_bytes("{]      ", 0), {"malformed JSON"}},
      {"an array", safetensors_bytes("[]      ", 0), {"'{'"}},
      {"cut JSON", safetensors_bytes(R"({"w":{"dty)", 0), {"malformed JSON"}},
      {"bytes that are no UTF-8", safetensors_bytes("{\"\xff\":1}", 0), {"malformed JSON"}},
      {"a name twice",
       safetensors_bytes(R"({"w":)" + entry("F32", "[1]", "[0,4]") + R"(,"w":)" +
                             entry("F32", "[1]", "[4,8]") + "}",
                         8),
       {"\"w\"", "twice"}},
      {"metadata that is no text",
       safetensors_bytes(R"({"__metadata__":{"n":1}})", 0),
       {"__metadata__/n", "string"}},
      {"unknown type", safetensors_bytes(one("F31", "[1]", "[0,4]"), 4), {"\"w\"", "F31"}},
      {"no type", safetensors_bytes(R"({"w":{"shape":[],"data_offsets":[0,4]}})", 4), {"dtype"}},
      {"no shape",
       safetensors_bytes(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4),
       {"shape"}},
      {"negative size", safetensors_bytes(one("F32", "[-1]", "[0,4]"), 4), {"\"w\"", "-1"}},
      {"size that is no number", safetensors_bytes(one("F32", "[1.5]", "[0,4]"), 4), {"1.5"}},
      {"product that overflows",
       safetensors_bytes(one("F32", "[" + huge + ",8]", "[0,16]"), 16),
       {"\"w\"", huge}},
      {"bytes that overflow",
       safetensors_bytes(one("F32", "[4611686018427387904]", "[0,0]"), 0),
       {"\"w\"", "4611686018427387904"}},
      {"three offsets", safetensors_bytes(one("F32", "[1]", "[0,4,8]"), 4), {"data_offsets"}},
      {"end before begin", safetensors_bytes(one("F32", "[1]", "[4,0]"), 4), {"data_offsets"}},
      {"offset below zero", safetensors_bytes(one("F32", "[1]", "[-4,0]"), 4), {"-4"}},
      {"too few bytes for the shape",
       safetensors_bytes(one("F32", "[2,2]", "[0,12]"), 12),
       {"\"w\"", "needs 16", "give 12"}},
      {"too many bytes for the shape",
       safetensors_bytes(one("F32", "[2,2]", "[0,20]"), 20),
       {"\"w\"", "needs 16", "give 20"}},
      {"part of a byte", safetensors_bytes(one("F4", "[3]", "[0,1]"), 1), {"\"w\"", "F4"}},
      {"one byte cut",
       safetensors_bytes(good, 15),
       {"truncated", std::to_string(8 + good.size() + 16), std::to_string(8 + good.size() + 15)}},
      {"data gone", safetensors_bytes(good, 0), {"truncated", "\"w\""}},
      {"eight bytes appended",
       safetensors_bytes(good, 24),
       {"8 bytes after the last tensor", std::to_string(8 + good.size() + 16),
        std::to_string(8 + good.size() + 24)}},
      {"bytes without any tensor", safetensors_bytes("{}      ", 4), {"4 bytes after"}},
      {"a gap", safetensors_bytes(two("[0,8]", "[12,20]"), 20), {"\"b\"", "12", "expected 8"}},
      {"a gap at the front", safetensors_bytes(two("[8,16]", "[16,24]"), 24), {"\"a\"", "8"}},
      {"an overlap", safetensors_bytes(two("[0,8]", "[4,12]"), 12), {"\"b\"", "inside", "\"a\""}},
      {"the same bytes twice", safetensors_bytes(two("[0,8]", "[0,8]"), 8), {"inside"}},
      {"misaligned",
       safetensors_bytes(R"({"a":)" + entry("U8", "[1]", "[0,1]") + R"(,"b":)" +
                             entry("F32", "[1]", "[1,5]") + "}",
                         5),
       {"\"b\"", "misaligned", "4 bytes"}},
  };
}

TEST(CheckpointDamage, EveryKindIsRefusedWithPlaceAndSizes) {
  const ScratchFolder folder;
  for (const Damage& damage : damages()) {
    const auto path = folder / "model.safetensors";
    write_text_file(path, damage.bytes);
    const auto [code, message] = refusal_of([&] { Checkpoint checkpoint(folder.path()); });
    EXPECT_EQ(code, ErrorCode::kBadInput) << damage.name << ": " << message;
    EXPECT_NE(message.find(path.string()), std::string::npos) << damage.name << ": " << message;
    for (const std::string& part : damage.says) {
      EXPECT_NE(message.find(part), std::string::npos)
          << damage.name << ": \"" << part << "\" is not in: " << message;
    }
  }
}

TEST(CheckpointDamage, EveryCutOfAFileIsRefused) {
  const ScratchFolder folder;
  const std::vector<OutgoingTensor> tensors = {counted("a", ElementType::kF32, {3}, 1),
                                               counted("b", ElementType::kU8, {5}, 2)};
  write_safetensors(folder / "whole.safetensors", tensors);
  const std::string whole = read_text_file(folder / "whole.safetensors");
  EXPECT_NO_THROW(SafetensorsFile(folder / "whole.safetensors"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_text_file(folder / "cut.safetensors", whole.substr(0, size));
    const auto refusal = refusal_of([&] { SafetensorsFile file(folder / "cut.safetensors"); });
    EXPECT_EQ(refusal.first, ErrorCode::kBadInput) << size << " bytes";
    EXPECT_NE(refusal.second.find("truncated"), std::string::npos) << refusal.second;
  }
}

/// Two shards and an index, with values that tell the shards apart.
void write_sharded(const ScratchFolder& folder) {
  const std::vector<OutgoingTensor> tensors = {counted("a", ElementType::kF32, {4}, 1),
                                               counted("b", ElementType::kF32, {4}, 2),
                                               counted("c", ElementType::kF32, {4}, 3)};
  write_checkpoint(folder.path(), tensors, 32);
}

const char* const kFirst = "model-00001-of-00002.safetensors";
const char* const kSecond = "model-00002-of-00002.safetensors";

std::string index_text(const std::string& map) {
  return R"({"metadata":{"total_size":48},"weight_map":)" + map + "}";
}

TEST(CheckpointDamage, AMissingShardIsNamed) {
  const ScratchFolder folder;
  write_sharded(folder);
  std::filesystem::remove(folder / kSecond);
  const auto [code, message] = refusal_of([&] { Checkpoint checkpoint(folder.path()); });
  EXPECT_EQ(code, ErrorCode::kBadInput);
  EXPECT_NE(message.find(kSecond), std::string::npos) << message;
}

TEST(CheckpointDamage, ATruncatedShardIsNamedBeforeAnyUse) {
  const ScratchFolder folder;
  write_sharded(folder);
  const std::string bytes = read_text_file(folder / kSecond);
  write_text_file(folder / kSecond, bytes.substr(0, bytes.size() - 1));
  const auto [code, message] = refusal_of([&] { Checkpoint checkpoint(folder.path()); });
  EXPECT_EQ(code, ErrorCode::kBadInput);
  EXPECT_NE(message.find(kSecond), std::string::npos) << message;
}

TEST(CheckpointDamage, TheIndexDecidesBetweenShards) {
  const ScratchFolder folder;
  const std::vector<OutgoingTensor> first = {counted("a", ElementType::kF32, {4}, 1),
                                             counted("extra", ElementType::kF32, {4}, 9)};
  const std::vector<OutgoingTensor> second = {counted("a", ElementType::kF32, {4}, 77),
                                              counted("b", ElementType::kF32, {4}, 2)};
  write_safetensors(folder / "one.safetensors", first);
  write_safetensors(folder / "two.safetensors", second);
  write_safetensors(folder / "stray.safetensors", second);
  write_text_file(folder / kIndexName,
                  R"({"metadata":{"total_size":99},"weight_map":{"a":"two.safetensors",)"
                  R"("b":"two.safetensors"}})");
  const Checkpoint alone(folder.path());  // one.safetensors is not named at all
  EXPECT_EQ(alone.find("a")->bytes()[0], std::byte{77});
  EXPECT_EQ(alone.find("extra"), nullptr);
  write_text_file(folder / kIndexName,
                  R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const Checkpoint both(folder.path());
  EXPECT_EQ(both.find("a")->bytes()[0], std::byte{1});
  std::string remarks;
  for (const std::string& remark : both.remarks()) {
    remarks += remark + "\n";
  }
  EXPECT_NE(remarks.find("\"extra\": not named by the index"), std::string::npos) << remarks;
  EXPECT_NE(remarks.find("\"a\": the index takes it from one.safetensors"), std::string::npos);
  EXPECT_NE(remarks.find("stray.safetensors: not named"), std::string::npos) << remarks;
  EXPECT_EQ(both.remarks().size(), 3U);
}

TEST(CheckpointDamage, AnIndexThatLiesIsRefused) {
  const ScratchFolder folder;
  write_sharded(folder);
  const std::string first = kFirst;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {index_text(R"({"zz":")" + first + R"("})"), "\"zz\" is missing"},
      {index_text(R"({"a":"../)" + first + R"("})"), "no file name in the same folder"},
      {index_text(R"({"a":"/etc/passwd"})"), "no file name in the same folder"},
      {index_text(R"({"a":3})"), "weight_map/a"},
      {index_text(R"(["a"])"), "weight_map"},
      {R"({"metadata":{}})", "weight_map"},
      {R"({"weight_map":{"a":"x","a":"y"}})", "twice"},
      {"{", "malformed JSON"},
  };
  for (const auto& [text, part] : cases) {
    write_text_file(folder / kIndexName, text);
    const auto [code, message] = refusal_of([&] { Checkpoint checkpoint(folder.path()); });
    EXPECT_EQ(code, ErrorCode::kBadInput) << text;
    EXPECT_NE(message.find(part), std::string::npos) << text << " -> " << message;
    EXPECT_NE(message.find(folder.path().string()), std::string::npos) << message;
  }
}

TEST(CheckpointDamage, TwoModelsInOneFolderAreRefused) {
  const ScratchFolder folder;
  write_sharded(folder);
  const std::vector<OutgoingTensor> single = {counted("a", ElementType::kF32, {4}, 5)};
  write_safetensors(folder / kSingleFileName, single);
  const auto [code, message] = refusal_of([&] { Checkpoint checkpoint(folder.path()); });
  EXPECT_EQ(code, ErrorCode::kBadInput);
  EXPECT_NE(message.find("which of them"), std::string::npos) << message;
}

TEST(CheckpointDamage, FoldersWithoutAModelAreRefused) {
  const ScratchFolder folder;
  EXPECT_EQ(refusal_of([&] { Checkpoint checkpoint(folder.path()); }).first, ErrorCode::kBadInput);
  EXPECT_EQ(refusal_of([&] { Checkpoint checkpoint(folder / "nowhere"); }).first,
            ErrorCode::kBadInput);
}

}  // namespace
}  // namespace coterie::models
