// SPDX-License-Identifier: Apache-2.0
#include "cli/token_input.hpp"

#include <algorithm>
#include <fstream>
#include <limits>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "coterie/models/models.hpp"

namespace coterie::cli {
namespace {

using Sequences = std::vector<std::vector<std::int32_t>>;

Sequences read_token_file(const std::string& path) {
  Sequences sequences;
  std::ifstream in(path);
  if (!in) {
    fail(ErrorCode::kIo, path, ": cannot be read");
  }
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    const std::string place = path + ": line " + std::to_string(number);
    const Json document = parse_json(line, place);
    const std::vector<std::int64_t> ids =
        JsonReader(document, place).as_ints(0, std::numeric_limits<std::int32_t>::max());
    sequences.emplace_back(ids.begin(), ids.end());
  }
  COTERIE_REQUIRE(!sequences.empty(), path, ": no line of token ids");
  return sequences;
}

/// Appends a file's tokens, cut, until `room` tokens are used up.
void add_text(const models::Tokenizer& tokenizer, const std::string& path,
              std::int64_t sequence_length, std::int64_t& room, Sequences& sequences) {
  const std::string text = read_text_file(path);
  COTERIE_REQUIRE(!text.empty(), path, ": the file is empty");
  models::require_utf8(text, path);
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  const auto count = std::min(room, std::ssize(ids));
  for (std::int64_t at = 0; at < count; at += sequence_length) {
    const std::int64_t end = std::min(count, at + sequence_length);
    sequences.emplace_back(ids.begin() + at, ids.begin() + end);
  }
  room -= count;
}

}  // namespace

Sequences read_sequences(const std::filesystem::path& model, const TokenInputFlags& flags) {
  COTERIE_REQUIRE(flags.texts.empty() != flags.tokens.empty(),
                  "give either --text FILE... or --tokens FILE");
  if (!flags.tokens.empty()) {
    return read_token_file(flags.tokens);
  }
  const auto tokenizer = models::Tokenizer::from_file(model / "tokenizer.json");
  // Every file gets its share, so that a small limit still sees all of them.
  std::int64_t room =
      flags.max_tokens > 0 ? flags.max_tokens : std::numeric_limits<std::int64_t>::max();
  Sequences sequences;
  for (std::size_t i = 0; i < flags.texts.size(); ++i) {
    std::int64_t share = room / static_cast<std::int64_t>(flags.texts.size() - i);
    room -= share;
    add_text(tokenizer, flags.texts[i], flags.sequence_length, share, sequences);
    room += share;
  }
  return sequences;
}

}  // namespace coterie::cli
