// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "coterie/report/report.hpp"

namespace coterie::report {
namespace {

TEST(TextTable, AlignsByCodePoints) {
  TextTable table({"name", "x", "bytes"});
  table.add_row({"größer", "1.5", "12 kB"});
  table.add_rule();
  table.add_row({"b", "10.25", ""});
  EXPECT_EQ(table.text(),
            "  name        x  bytes\n"
            "  ------  -----  -----\n"
            "  größer    1.5  12 kB\n"
            "  ------  -----  -----\n"
            "  b       10.25\n");
  EXPECT_ANY_THROW(table.add_row({"too", "few"}));
}

TEST(Numbers, Fixed) {
  EXPECT_EQ(fixed(3.14159), "3.14");
  EXPECT_EQ(fixed(-0.001), "0.00");
  EXPECT_EQ(fixed(2.5, 0), "2");
  EXPECT_EQ(fixed(1e20, 0), "100000000000000000000");
  EXPECT_EQ(fixed(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(fixed(std::numeric_limits<double>::quiet_NaN()), "-");
}

TEST(Numbers, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1234), "1.23 kB");
  EXPECT_EQ(human_bytes(12345), "12.3 kB");
  EXPECT_EQ(human_bytes(123456789), "123 MB");
  EXPECT_EQ(human_bytes(999999), "1.00 MB");
  EXPECT_EQ(human_bytes(~std::uint64_t{0}), "18447 PB");
}

TEST(Numbers, GroupsAndChanges) {
  EXPECT_EQ(grouped(5), "5");
  EXPECT_EQ(grouped(123), "123");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(percent_change(4, 3), "-25 %");
  EXPECT_EQ(percent_change(4, 5), "+25 %");
  EXPECT_EQ(percent_change(4, 4), "0 %");
  EXPECT_EQ(percent_change(1000, 999), "0 %");
  EXPECT_EQ(percent_change(0, 1), "-");
}

}  // namespace
}  // namespace coterie::report
