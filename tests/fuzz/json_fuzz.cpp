// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include "coterie/base/error.hpp"
#include "coterie/base/json.hpp"
#include "tests/fuzz/fuzz_target.hpp"

namespace coterie::fuzz {
namespace {

/// Asks for every type at every place, as readers do.
void visit(const JsonReader& reader) {
  const auto ask = [](const auto& question) {
    try {
      question();
    } catch (const Error& error) {
      COTERIE_CHECK(error.code() == ErrorCode::kBadInput, error.what());
    }
  };
  ask([&] { std::ignore = reader.as_int(0, 100); });
  ask([&] { std::ignore = reader.as_double(); });
  ask([&] { std::ignore = reader.as_bool(); });
  ask([&] { std::ignore = reader.as_string(); });
  ask([&] { std::ignore = reader.as_ints(-5, 5); });
  ask([&] { std::ignore = reader.at("missing"); });
  if (reader.value().is_array()) {
    for (std::size_t i = 0; i < reader.size(); ++i) {
      visit(reader.at(i));
    }
  } else if (reader.value().is_object()) {
    for (const auto& [key, value] : reader.value().items()) {
      visit(reader.at(key));
    }
  }
}

void read(std::string_view bytes) {
  const Json document = parse_json(bytes, "input");
  const std::string text = format_json(document);
  COTERIE_CHECK(parse_json(text, "again") == document, "what is written reads back the same");
  if (bytes.size() < 2000) {
    visit(JsonReader(document, "input"));
  }
}

std::vector<std::string> seeds() {
  return {
      R"({"a": [1, 2.5, -3e10, true, null, "x\ny\u00e9\ud83d\ude00"], "b": {"c": {}, "d": []}})",
      R"([[1, 2], [3, 4], {"layer": 0, "top_k": 8, "ids": [0, 63, -1]}])",
      R"({"k0":0,"k1":1,"k2":2,"k3":3,"k4":4,"k5":5,"k6":6,"k7":7,"k8":8,"k9":9,"k10":10,)"
      R"("k11":11,"k12":12,"k13":13,"k14":14,"k15":15,"k16":16,"k17":17})",
      "18446744073709551615",
      "[]",
      "\"\"",
      "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]"};
}

}  // namespace

const Target kJson = {"json", read, seeds};

}  // namespace coterie::fuzz
