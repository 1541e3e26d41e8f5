// SPDX-License-Identifier: Apache-2.0
#include "coterie/plan/pruning/similarity.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/random.hpp"
#include "coterie/plan/pruning/similarity_file.hpp"

namespace coterie::pruning {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.normal() + 0.5);
  }
  return values;
}

/// Two passes over the columns, as the formula is written.
double cosine(const std::vector<float>& values, std::size_t width, std::size_t i, std::size_t j,
              bool centred) {
  double mean_i = 0;
  double mean_j = 0;
  const std::size_t rows = values.size() / width;
  for (std::size_t r = 0; centred && r < rows; ++r) {
    mean_i += static_cast<double>(values[r * width + i]) / static_cast<double>(rows);
    mean_j += static_cast<double>(values[r * width + j]) / static_cast<double>(rows);
  }
  double ij = 0;
  double ii = 0;
  double jj = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const double a = static_cast<double>(values[r * width + i]) - mean_i;
    const double b = static_cast<double>(values[r * width + j]) - mean_j;
    ij += a * b;
    ii += a * a;
    jj += b * b;
  }
  return ij / std::sqrt(ii * jj);
}

TEST(Similarity, IsTheFormula) {
  constexpr std::size_t kExperts = 9;
  const std::vector<float> values = random_values(kExperts * 200, 1);
  SimilarityProfile profile(kExperts);
  profile.add(values);
  const auto plain = profile.table(Measure::kCosine);
  const auto centred = profile.table(Measure::kCentredCosine);
  const auto squared = profile.table(Measure::kSquaredCosine);
  for (std::size_t i = 0; i < kExperts; ++i) {
    EXPECT_EQ(plain(i, i), 1);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NEAR(plain(i, j), cosine(values, kExperts, i, j, false), 1e-12);
      EXPECT_NEAR(centred(i, j), cosine(values, kExperts, i, j, true), 1e-10);
      EXPECT_EQ(squared(i, j), plain(i, j) * plain(i, j));
      EXPECT_EQ(plain(i, j), plain(j, i));
    }
  }
  EXPECT_LT(std::abs(centred(1, 0)), std::abs(plain(1, 0)));  // a common offset inflates the plain
}

TEST(Similarity, BatchesDoNotMatter) {
  const std::vector<float> values = random_values(5 * 64, 2);
  SimilarityProfile whole(5);
  whole.add(values);
  SimilarityProfile parts(5);
  parts.add(std::span(values).first(5));
  parts.add({});
  parts.add(std::span(values).subspan(5));
  EXPECT_EQ(whole.table(Measure::kCosine), parts.table(Measure::kCosine));
  EXPECT_EQ(parts.num_tokens(), 64U);
}

TEST(Similarity, DegenerateColumnsAreLikeNothing) {
  SimilarityProfile profile(3);
  profile.add(std::vector<float>{0, 2, 1, 0, 2, 3});
  EXPECT_EQ(profile.table(Measure::kCosine)(1, 0), 0);
  EXPECT_EQ(profile.table(Measure::kCentredCosine)(2, 1), 0);  // column 1 is constant
  EXPECT_GT(profile.table(Measure::kCosine)(2, 1), 0);
}

TEST(Similarity, OutputsGiveTheirProducts) {
  // Two tokens, two experts whose outputs are vectors of length 2.
  const double outputs[2][2][2] = {{{1, 2}, {2, 1}}, {{0, 1}, {1, 1}}};
  SimilarityProfile profile(2);
  for (const auto& token : outputs) {
    Matrix<double> products(2, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t j = 0; j < 2; ++j) {
        products(i, j) = token[i][0] * token[j][0] + token[i][1] * token[j][1];
      }
    }
    profile.add_products(products);
  }
  EXPECT_NEAR(profile.table(Measure::kCosine)(0, 1), 5 / std::sqrt(6.0 * 7.0), 1e-15);
  EXPECT_THROW((void)profile.table(Measure::kCentredCosine), Error);
}

TEST(Similarity, RefusesWhatItCannotCount) {
  EXPECT_THROW(SimilarityProfile(0), Error);
  SimilarityProfile profile(2);
  EXPECT_THROW((void)profile.table(Measure::kCosine), Error);
  EXPECT_THROW(profile.add(std::vector<float>{1, 2, 3}), Error);
  EXPECT_THROW(profile.add(std::vector<float>{1, std::nanf("")}), Error);
  EXPECT_THROW(profile.add_products(Matrix<double>(3, 3)), Error);
}

class SimilarityFile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(path_); }
  void TearDown() override { std::filesystem::remove(path_); }

  static ModelSimilarity example() {
    SimilarityProfile profile(4);
    profile.add(random_values(40, 3));
    return {
        "00ff",          Measure::kCentredCosine,
        "router_logits", 10,
        {0, 2},          {profile.table(Measure::kCentredCosine), profile.table(Measure::kCosine)}};
  }

  std::filesystem::path path_ = std::filesystem::path(::testing::TempDir()) /
                                ("similarity_" + std::to_string(::getpid()) + ".json");
};

TEST_F(SimilarityFile, ComesBackAsItWas) {
  write_similarity(path_, example());
  EXPECT_EQ(read_similarity(path_), example());
}

TEST_F(SimilarityFile, RefusesDamage) {
  ModelSimilarity broken = example();
  broken.tables[1](0, 1) = 3;
  EXPECT_THROW(write_similarity(path_, broken), Error);
  broken = example();
  broken.layers = {2, 0};
  EXPECT_THROW(write_similarity(path_, broken), Error);
  broken = example();
  broken.tables.pop_back();
  EXPECT_THROW(write_similarity(path_, broken), Error);
  EXPECT_FALSE(std::filesystem::exists(path_));
  write_similarity(path_, example());
  const std::string text = read_text_file(path_);
  for (const auto& [from, to] : {std::pair{"\"version\": 1", "\"version\": 9"},
                                 std::pair{"centred_cosine", "centered_cosine"},
                                 std::pair{"coterie-similarity", "coterie-placement"},
                                 std::pair{"\"layers\"", "\"layer\""}}) {
    std::string changed = text;
    changed.replace(changed.find(from), std::string(from).size(), to);
    write_text_file(path_, changed);
    EXPECT_THROW((void)read_similarity(path_), Error) << to;
  }
}

}  // namespace
}  // namespace coterie::pruning
