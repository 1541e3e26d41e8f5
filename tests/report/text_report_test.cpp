// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "coterie/base/error.hpp"
#include "coterie/base/file.hpp"
#include "coterie/base/json.hpp"
#include "tests/folders.hpp"
#include "tests/report/sample_report.hpp"

namespace coterie::report {
namespace {

/// Figures by hand, so that no change of an algorithm touches the golden text.
ReportData fixed_report() {
  ReportData data = sample_report();
  const std::vector<double> replicas = {3.2, 2.9, 2.4};
  for (std::size_t p = 0; p < 3; ++p) {
    for (std::size_t l = 0; l < 2; ++l) {
      for (std::size_t t = 0; t < 3; ++t) {
        const double shift = 0.01 * static_cast<double>(l) + 0.1 * static_cast<double>(t);
        data.placements[p].measured[l][t] = {
            {1000, replicas[p] + shift, replicas[p] * 1.1, 1.05 + shift, 1.02 + shift},
            1000000 * (p + 1)};
      }
    }
  }
  for (LayerReport& layer : data.layers) {
    layer.bounds = {3.25, 1, 1.5, 4};
  }
  return data;
}

void expect_golden(const std::string& name, const std::string& content) {
  const auto path = tests::source_dir() / "tests/golden" / name;
  if (std::getenv("COTERIE_UPDATE_GOLDEN") != nullptr) {
    write_text_file(path, content);
  }
  EXPECT_EQ(read_text_file(path), content) << name;
}

TEST(TextReport, KeepsItsForm) {
  expect_golden("report.txt", text_report(fixed_report()));
}

TEST(TextReport, JsonKeepsItsForm) {
  expect_golden("report.json", format_json(to_json(fixed_report())));
}

TEST(TextReport, HeadlineSaysWhatCameOut) {
  ReportData data = fixed_report();
  EXPECT_NE(headline(data).find("visits 2.50 of 4 devices"), std::string::npos) << headline(data);
  EXPECT_NE(headline(data).find("24 % less"), std::string::npos) << headline(data);
  std::swap(data.placements[0].measured, data.placements[2].measured);
  EXPECT_NE(headline(data).find("saves nothing"), std::string::npos) << headline(data);
}

TEST(TextReport, DifferenceIsLoud) {
  ReportData data = fixed_report();
  data.placements[2].run->bit_equal = false;
  data.placements[2].run->bytes_predicted = 5;
  const std::string text = text_report(data);
  EXPECT_NE(text.find("DIFFERS"), std::string::npos);
  EXPECT_NE(text.find("NO"), std::string::npos);
}

TEST(TextReport, SummaryIsOverLayers) {
  const Summary summary = summarise(fixed_report().placements[2], 0);
  EXPECT_NEAR(summary.replicas, 2.405, 1e-12);
  EXPECT_NEAR(summary.load_imbalance, 1.055, 1e-12);
  EXPECT_NEAR(summary.worst_load_imbalance, 1.06, 1e-12);
  EXPECT_EQ(summary.bytes_sent, 6000000U);
}

TEST(TextReport, WithoutHeldOutTextTheFirstIsMeant) {
  ReportData data = fixed_report();
  data.texts[1].role = TextRole::kOtherDomain;
  EXPECT_EQ(headline_text(data), 0U);
}

TEST(TextReport, WrongSizesAreFound) {
  const auto broken = [](auto change) {
    ReportData data = fixed_report();
    change(data);
    EXPECT_THROW(check_report(data), Error);
  };
  broken([](ReportData& data) { data.placements[1].measured.pop_back(); });
  broken([](ReportData& data) { data.placements[1].measured[0].pop_back(); });
  broken([](ReportData& data) { data.placements[1].layers.clear(); });
  broken([](ReportData& data) { data.layers[0].pairs = Matrix<std::uint64_t>(3, 3); });
  broken([](ReportData& data) { data.chosen = "none"; });
  broken([](ReportData& data) { data.texts.clear(); });
  EXPECT_NO_THROW(check_report(fixed_report()));
}

}  // namespace
}  // namespace coterie::report
