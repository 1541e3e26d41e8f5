// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>
#include <vector>

#include "tests/report/sample_report.hpp"

namespace coterie::report {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// Every element that opens also closes, in the right order. Returns what is wrong.
std::string nesting_fault(const std::string& html) {
  static const std::vector<std::string> kVoid = {"!doctype", "meta", "input"};
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    const bool closes = html[at + 1] == '/';
    const std::size_t begin = at + (closes ? 2 : 1);
    const std::string name = html.substr(begin, html.find_first_of(" >/", begin) - begin);
    const bool closes_itself = html[end - 1] == '/';
    if (closes) {
      if (open.empty() || open.back() != name) {
        return "</" + name + "> at " + std::to_string(at) + " closes " +
               (open.empty() ? "nothing" : open.back());
      }
      open.pop_back();
    } else if (!closes_itself && std::find(kVoid.begin(), kVoid.end(), name) == kVoid.end()) {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : open.back() + " stays open";
}

TEST(HtmlReport, IsWellFormed) {
  EXPECT_EQ(nesting_fault(html_report(sample_report())), "");
  EXPECT_EQ(nesting_fault(html_report(sample_report(8, 1, 2, 2))), "");
}

TEST(HtmlReport, LoadsNothing) {
  const std::string html = html_report(sample_report());
  EXPECT_EQ(count(html, "http"), 0U);
  EXPECT_EQ(count(html, "<script"), 0U);
  EXPECT_EQ(count(html, "<link"), 0U);
  EXPECT_EQ(count(html, "@import"), 0U);
  EXPECT_EQ(count(html, "url("), 0U);
  EXPECT_EQ(count(html, "href="), count(html, "href=\"data:image/png;base64,"));
  EXPECT_EQ(count(html, "src="), 0U);
}

TEST(HtmlReport, ShowsEveryLayerPlacementAndText) {
  const ReportData data = sample_report(16, 3);
  const std::string html = html_report(data);
  EXPECT_EQ(count(html, "type=\"radio\""), 3U);
  EXPECT_EQ(count(html, "class=\"heat\""), 6U) << "before and after, each layer";
  EXPECT_EQ(count(html, "class=\"block\""), 6U * 4);
  EXPECT_EQ(count(html, "<details>"), 3U);
  EXPECT_EQ(count(html, "class=\"chart\""), 2U);
  for (const PlacementReport& placement : data.placements) {
    EXPECT_GE(count(html, placement.label), 6U) << placement.label;
  }
  for (const char* part : {"held-out", "code", "bit-equal", "3 padding rows",
                           "prefers-color-scheme", "viewport", "1.10", "1.23 MB"}) {
    EXPECT_GE(count(html, part), 1U) << part;
  }
}

TEST(HtmlReport, NoStringOfTheUserIsMarkup) {
  ReportData data = sample_report();
  const std::string evil = "<script>alert('x')</script>\"&";
  data.title = evil;
  for (TextSample& text : data.texts) {
    text.name += evil;
  }
  for (PlacementReport& placement : data.placements) {
    placement.label += evil;
    placement.description = evil;
  }
  data.provenance = {{evil, evil}};
  data.notes = {evil};
  const std::string html = html_report(data);
  EXPECT_EQ(count(html, "<script"), 0U);
  EXPECT_GE(count(html, "&lt;script&gt;"), 10U);
  EXPECT_EQ(nesting_fault(html), "");
}

TEST(HtmlReport, DifferenceIsLoud) {
  ReportData data = sample_report();
  data.placements[2].run->bit_equal = false;
  EXPECT_GE(count(html_report(data), "DIFFER"), 2U);
}

// COTERIE_SAMPLE_REPORT=FILE writes a page of the demo's size to look at.
TEST(HtmlReport, LargeReport) {
  const ReportData data = sample_report(64, 6, 8, 8);
  const std::string html = html_report(data);
  EXPECT_LT(html.size(), std::size_t{400} << 10U);
  if (const char* path = std::getenv("COTERIE_SAMPLE_REPORT")) {
    write_html_report(path, data);
  }
}

}  // namespace
}  // namespace coterie::report
