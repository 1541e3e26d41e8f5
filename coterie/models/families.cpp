// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "coterie/base/error.hpp"
#include "coterie/models/family.hpp"

namespace coterie::models {
namespace {

void replace_number(std::string& text, std::string_view mark, std::int64_t number) {
  const auto at = text.find(mark);
  if (at != std::string::npos) {
    text.replace(at, mark.size(), std::to_string(number));
  }
}

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> kFamilies = {
      mixtral_family(),
      olmoe_family(),
  };
  return kFamilies;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.push_back(family.model_type);
  }
  return names;
}

const Family& family_named(const std::string& model_type, const std::string& file) {
  std::string known;
  for (const Family& family : families()) {
    if (family.model_type == model_type) {
      return family;
    }
    known += (known.empty() ? "" : ", ") + family.model_type;
  }
  fail(ErrorCode::kUnsupported, file, ": model_type = \"", model_type,
       "\" is not supported; families known here: ", known);
}

std::string fill_name(const std::string& pattern, std::int64_t layer, std::int64_t expert) {
  std::string name = pattern;
  replace_number(name, "{layer}", layer);
  if (expert >= 0) {
    replace_number(name, "{expert}", expert);
  }
  return name;
}

}  // namespace coterie::models
