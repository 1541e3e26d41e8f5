// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "coterie/base/error.hpp"
#include "coterie/training/recipe.hpp"

namespace coterie::training {
namespace {

/// Name and text of every file in recipes/.
constexpr std::pair<const char*, const char*> kRecipes[] = {
#include "recipe_table.inc"
};

}  // namespace

std::vector<std::string> bundled_recipes() {
  std::vector<std::string> names;
  for (const auto& [name, text] : kRecipes) {
    names.emplace_back(name);
  }
  return names;
}

std::string bundled_recipe(const std::string& name) {
  std::string known;
  for (const auto& [recipe, text] : kRecipes) {
    if (name == recipe) {
      return text;
    }
    known += (known.empty() ? "" : ", ") + std::string(recipe);
  }
  fail(ErrorCode::kBadInput, "no recipe is called \"", name, "\"; there are: ", known);
}

}  // namespace coterie::training
