// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "tests/plan/routing/tiny_trace.hpp"

namespace coterie::routing {
namespace {

using Damage = FolderTest;

/// Opens the bytes as a trace file and reads every layer.
void read_all(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;  // thousands of times: no wait for the disk
  const auto trace = open_trace(path);
  for (std::size_t slot = 0; slot < trace->header().layers.size(); ++slot) {
    static_cast<void>(trace->layer(slot, true));
  }
}

std::string tiny_binary(const std::filesystem::path& path) {
  write_trace(path, *tiny_trace({.layers = {2}, .num_tokens = 5}));
  return read_text_file(path);
}

TEST_F(Damage, EveryTruncationIsRefused) {
  const std::string bytes = tiny_binary(folder_ / "t");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string what =
        expect_refused([&] { read_all(folder_ / "cut", bytes.substr(0, size)); }, {"cut"});
    ASSERT_FALSE(what.empty()) << "cut to " << size << " of " << bytes.size();
  }
}

TEST_F(Damage, AFlippedBitInAnyByteIsRefused) {
  std::string bytes = tiny_binary(folder_ / "t");
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto mask = static_cast<char>(1U << (i % 8));
    bytes[i] = static_cast<char>(bytes[i] ^ mask);
    const std::string what = expect_refused([&] { read_all(folder_ / "bad", bytes); }, {"bad"});
    ASSERT_FALSE(what.empty()) << "byte " << i;
    bytes[i] = static_cast<char>(bytes[i] ^ mask);
  }
}

TEST_F(Damage, AddedBytesAreRefused) {
  const std::string bytes = tiny_binary(folder_ / "t");
  expect_refused([&] { read_all(folder_ / "more", bytes + std::string(8, '\0')); },
                 {"more", "byte", "bytes were added"});
}

TEST_F(Damage, MessagesNameLayerAndByte) {
  std::string bytes = tiny_binary(folder_ / "t");
  // The first block (token table) begins behind the header; its first byte is a sequence number.
  const std::size_t header_bytes = static_cast<std::uint8_t>(bytes[12]) +
                                   std::size_t{static_cast<std::uint8_t>(bytes[13])} * 256;
  const std::size_t tokens_at = 16 + (header_bytes + 7) / 8 * 8;
  bytes[tokens_at] = 1;
  expect_refused([&] { read_all(folder_ / "f", bytes); },
                 {"f: tokens: byte " + std::to_string(tokens_at), "checksum"});
  bytes[tokens_at] = 0;
  const std::size_t ids_at = tokens_at + 64;  // five tokens of 12 bytes, padded
  bytes[ids_at] = static_cast<char>(bytes[ids_at] ^ 1);
  expect_refused([&] { read_all(folder_ / "f", bytes); },
                 {"f: layer 2: byte " + std::to_string(ids_at), "checksum"});
  bytes[8] = 2;
  expect_refused([&] { read_all(folder_ / "f", bytes); }, {"byte 8", "version 2"});
}

TEST_F(Damage, JsonlTruncationsAreRefused) {
  write_jsonl_trace(folder_ / "t", *tiny_trace({.layers = {2}, .num_tokens = 5}));
  const std::string text = read_text_file(folder_ / "t");
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {  // the last line end may be missing
    const std::string what =
        expect_refused([&] { read_all(folder_ / "cut", text.substr(0, size)); }, {"cut"});
    ASSERT_FALSE(what.empty()) << "cut to " << size << " of " << text.size();
  }
}

TEST_F(Damage, JsonlFlippedBytesNeverCrash) {
  write_jsonl_trace(folder_ / "t", *tiny_trace({.layers = {2}, .num_tokens = 3}));
  std::string text = read_text_file(folder_ / "t");
  int refused = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char kept = text[i];
    text[i] = static_cast<char>(kept ^ 0x15);
    try {
      read_all(folder_ / "bad", text);
    } catch (const Error&) {
      ++refused;
    }
    text[i] = kept;
  }
  EXPECT_GT(refused, static_cast<int>(text.size()) / 2);
}

TEST_F(Damage, JsonlMessagesNameTheLine) {
  write_jsonl_trace(folder_ / "t", *tiny_trace({.layers = {2}, .num_tokens = 4}));
  const std::string text = read_text_file(folder_ / "t");
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::vector<std::string>& parts) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    expect_refused([&] { read_all(folder_ / "f", changed); }, parts);
  };
  refused("\"num_experts\":8", "\"num_experts\":0", {"line 1", "/num_experts"});
  refused("\"num_experts\":8", "\"num_experts\":1e400", {"line 1"});
  refused("\"top_k\":2", "\"top_k\":\"2\"", {"line 1", "/top_k"});
  refused("\"version\":1", "\"version\":7", {"line 1", "version 7"});
  refused("\"sequence\":0", "\"sequence\":-1", {"line 2", "/sequence"});
  refused("\"domain\":\"code\"", "\"domain\":\"else\"", {"line 2", "/domain", "else"});
  refused("\"experts\":[[", "\"experts\":[[1,", {"line 2", "/experts/0", "a list of 2"});
  refused("\"experts\":[[", "\"experts\":[[1],[", {"line 2", "/experts", "a list of 1"});
  refused("\"flags\":[\"warm-up\"]", "\"flags\":[\"hot\"]", {"line 2", "/flags/0", "hot"});
  refused("\"weights\":[[", "\"weights\":[[null,", {"line 2", "/weights/0"});
  refused("\"end_of_trace\":4", "\"end_of_trace\":5", {"line 6", "4 records", "5"});
  refused("}\n{\"end", "}\n{}\n{\"end", {"line 6", "sequence"});
}

}  // namespace
}  // namespace coterie::routing
