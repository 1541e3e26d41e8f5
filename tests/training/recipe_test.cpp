// SPDX-License-Identifier: Apache-2.0
#include "coterie/training/recipe.hpp"

#include <gtest/gtest.h>

#include "coterie/base/error.hpp"

namespace coterie::training {
namespace {

Json bundled(const std::string& name) {
  return parse_json(bundled_recipe(name), name);
}

std::string message_of(const Json& document) {
  try {
    read_recipe(document, "my.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(RecipeTest, EveryBundledRecipeIsReadAndPrintedBackWhole) {
  for (const std::string& name : bundled_recipes()) {
    const Json document = bundled(name);
    const Recipe recipe = read_recipe(document, name);
    EXPECT_EQ(recipe.name, name);
    const Json printed = to_json(recipe);
    EXPECT_EQ(read_recipe(printed, name), recipe);
    // What the file says is what is printed.
    for (const auto& [key, value] : document.items()) {
      ASSERT_TRUE(printed.contains(key)) << key;
      if (value.is_object() && key != "data" && key != "gate") {
        for (const auto& [inner, number] : value.items()) {
          EXPECT_EQ(printed[key][inner], number) << name << " " << key << "." << inner;
        }
      }
    }
  }
}

TEST(RecipeTest, UnknownKeysAreNamedAtEveryDepth) {
  for (const char* path : {"/stepz", "/optimizer/betta1", "/batch/sequence", "/data/file",
                           "/data/sources/0/weight", "/layout/tensor", "/rate/max", "/gate/aux",
                           "/order/seed", "/compute/type", "/checkpoint/last", "/evaluation/all"}) {
    Json document = to_json(read_recipe(bundled("mixtral-toy"), "x"));
    document[Json::json_pointer(path)] = 1;
    const std::string message = message_of(document);
    const std::string key = std::string(path).substr(std::string(path).rfind('/') + 1);
    EXPECT_NE(message.find(key), std::string::npos) << message;
    EXPECT_FALSE(message.empty()) << path;
    EXPECT_NE(message.find("my.json"), std::string::npos) << message;
  }
}

TEST(RecipeTest, WrongValuesAreNamed) {
  for (const auto& [path, value] :
       std::vector<std::pair<const char*, Json>>{{"/steps", 0},
                                                 {"/steps", "many"},
                                                 {"/optimizer/beta1", 1.0},
                                                 {"/compute/dtype", "fp8"},
                                                 {"/data/order", "sorted"},
                                                 {"/data/sources", Json::array()},
                                                 {"/layout/expert", 0},
                                                 {"/model", 3},
                                                 {"/format", "coterie.placement"},
                                                 {"/clip_norm", -1}}) {
    Json document = bundled("mixtral-toy");
    document[Json::json_pointer(path)] = value;
    const std::string message = message_of(document);
    const std::string key = std::string(path).substr(1, std::string(path).find('/', 1) - 1);
    EXPECT_NE(message.find(key), std::string::npos) << path << ": " << message;
  }
  Json document = bundled("mixtral-toy");
  document["version"] = 2;
  EXPECT_NE(message_of(document).find("version 2"), std::string::npos);
}

TEST(RecipeTest, ValuesCanBeSetByPath) {
  Json document = to_json(read_recipe(bundled("mixtral-toy"), "x"));
  set_value(document, "optimizer.beta2=0.999");
  set_value(document, "layout.expert=2");
  set_value(document, "name=mine");
  set_value(document, "data.sources.1.share=3");
  set_value(document, "data.sources.0.files=[\"a=b.txt\"]");
  set_value(document, "model.sliding_window=64");
  const Recipe recipe = read_recipe(document, "x");
  EXPECT_EQ(recipe.optimizer.beta2, 0.999);
  EXPECT_EQ(recipe.layout.expert, 2);
  EXPECT_EQ(recipe.name, "mine");
  EXPECT_EQ(recipe.data.sources[1].share, 3);
  EXPECT_EQ(recipe.data.sources[0].files[0], "a=b.txt");
  EXPECT_EQ(recipe.model["sliding_window"], 64);
  for (const char* wrong :
       {"optimizer.beta3=1", "nothing", "=3", "data.sources.9.share=1", "steps.more=1"}) {
    EXPECT_THROW(set_value(document, wrong), Error) << wrong;
  }
}

TEST(RecipeTest, UnknownNamesListTheKnown) {
  try {
    bundled_recipe("llama");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("mixtral-toy"), std::string::npos);
  }
}

}  // namespace
}  // namespace coterie::training
