// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/token_streams.hpp"

#include <algorithm>
#include <cstring>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/hash.hpp"
#include "coterie/base/json.hpp"

namespace coterie::training {
namespace {

namespace fs = std::filesystem;

std::vector<std::int32_t> read_token_file(const fs::path& path) {
  const MappedFile file(path);
  COTERIE_REQUIRE(file.bytes().size() % 2 == 0, path.string(), ": ", file.bytes().size(),
                  " bytes are no whole number of 16-bit token ids");
  std::vector<std::uint16_t> raw(file.bytes().size() / 2);
  std::memcpy(raw.data(), file.bytes().data(), file.bytes().size());
  return {raw.begin(), raw.end()};
}

void check_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab_size,
               const fs::path& path) {
  const auto wrong =
      std::ranges::find_if(ids, [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
  COTERIE_REQUIRE(wrong == ids.end(), path.string(), ": token ", wrong - ids.begin(), " is ",
                  wrong == ids.end() ? 0 : *wrong, ", the model's vocabulary has ", vocab_size);
}

}  // namespace

std::vector<std::string> read_json_lines_texts(const fs::path& path) {
  const std::string all = read_text_file(path);
  std::vector<std::string> texts;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view line(all.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    const std::string where = path.string() + ", line " + std::to_string(number);
    models::require_utf8(line, where);
    const Json document = parse_json(std::string(line), where);
    texts.push_back(JsonReader(document, where).at("text").as_string());
  }
  COTERIE_REQUIRE(!texts.empty(), path.string(), ": the file holds no line with a text");
  return texts;
}

std::uint64_t TokenStream::fingerprint() const {
  return Hash().add(std::as_bytes(std::span(token_ids))).value();
}

TokenStream read_token_stream(const TextSource& source, const fs::path& folder,
                              const models::Tokenizer* tokenizer, std::int32_t separator,
                              std::int64_t vocab_size) {
  TokenStream stream;
  stream.name = source.name;
  for (const std::string& name : source.files) {
    const fs::path path = folder / name;
    std::vector<std::int32_t> ids;
    if (path.extension() == ".tokens") {
      ids = read_token_file(path);
    } else if (path.extension() == ".jsonl") {
      COTERIE_REQUIRE(tokenizer != nullptr, path.string(),
                      ": text needs a tokenizer (data/tokenizer)");
      for (const std::string& text : read_json_lines_texts(path)) {
        if (!ids.empty() && separator >= 0) {
          ids.push_back(separator);
        }
        const std::vector<std::int32_t> more = tokenizer->encode(text, false);
        ids.insert(ids.end(), more.begin(), more.end());
        stream.num_bytes += std::ssize(text);
      }
    } else {
      COTERIE_REQUIRE(tokenizer != nullptr, path.string(),
                      ": text needs a tokenizer (data/tokenizer)");
      const std::string text = read_text_file(path);
      COTERIE_REQUIRE(!text.empty(), path.string(), ": the file is empty");
      models::require_utf8(text, path.string());
      ids = tokenizer->encode(text, false);
      stream.num_bytes += std::ssize(text);
    }
    check_ids(ids, vocab_size, path);
    if (separator >= 0) {
      stream.token_ids.push_back(separator);
    }
    stream.token_ids.insert(stream.token_ids.end(), ids.begin(), ids.end());
  }
  return stream;
}

}  // namespace coterie::training
