// SPDX-License-Identifier: Apache-2.0
// tokenizer_probe TOKENIZER.json: every line of standard input is a JSON string; prints for each a
// line {"ids": [...], "plain": [...], "text": "..."}: its ids, its ids without special tokens, and
// the first decoded; or a list of ids, which are decoded, also one by one: {"text", "pushed"}.
// tokenizer_probe TOKENIZER.json FILE: encodes FILE five times and prints MB/s of processor time.
#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "coterie/models/streaming_decoder.hpp"
#include "coterie/models/tokenizer.hpp"

namespace {

void measure(const coterie::models::Tokenizer& tokenizer, const std::string& file) {
  const std::string text = coterie::read_text_file(file);
  double best_seconds = 1e9;
  std::size_t num_tokens = 0;
  for (int i = 0; i < 5; ++i) {
    const std::clock_t start = std::clock();
    num_tokens = tokenizer.encode(text).size();
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best_seconds = std::min(best_seconds, seconds);
    std::cout << static_cast<double>(text.size()) / 1e6 / seconds << " MB/s\n";
  }
  std::cout << num_tokens
            << " tokens, best of 5: " << static_cast<double>(text.size()) / 1e6 / best_seconds
            << " MB/s\n";
}

/// Throws where a push gives broken text: dump() checks it.
void print_decoded(const coterie::models::Tokenizer& tokenizer,
                   const std::vector<std::int32_t>& ids) {
  coterie::Json out;
  for (const bool skip : {true, false}) {
    coterie::models::StreamingDecoder stream(tokenizer, skip);
    coterie::Json pushed = coterie::Json::array();
    for (const std::int32_t id : ids) {
      pushed.push_back(stream.push(id));
    }
    pushed.push_back(stream.finish());
    out[skip ? "pushed" : "pushed_with_special"] = std::move(pushed);
    out[skip ? "text" : "with_special"] = tokenizer.decode(ids, skip);
  }
  std::cout << out.dump() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto tokenizer = coterie::models::Tokenizer::from_file(argv[1]);
    if (argc > 2) {
      measure(tokenizer, argv[2]);
      return 0;
    }
    for (std::string line; std::getline(std::cin, line);) {
      const coterie::Json asked = coterie::parse_json(line, "input");
      if (asked.is_array()) {
        print_decoded(tokenizer, asked.get<std::vector<std::int32_t>>());
        continue;
      }
      const auto text = asked.get<std::string>();
      const auto ids = tokenizer.encode(text);
      coterie::Json out;
      out["ids"] = ids;
      out["plain"] = tokenizer.encode(text, false);
      out["text"] = tokenizer.decode(ids);
      out["with_special"] = tokenizer.decode(ids, false);
      std::cout << out.dump() << "\n";
    }
  } catch (const coterie::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return coterie::exit_code_of(error.code());
  }
  return 0;
}
