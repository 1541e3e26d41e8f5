// SPDX-License-Identifier: Apache-2.0
#include "coterie/report/markup.hpp"

#include <gtest/gtest.h>

namespace coterie::report {
namespace {

TEST(Escape, MarkupBecomesText) {
  EXPECT_EQ(escape("<a href=\"x\" id='y'>&</a>"),
            "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;&lt;/a&gt;");
  EXPECT_EQ(escape("größer 中 😀"), "größer 中 😀");
  EXPECT_EQ(escape(std::string("a\0b\nc", 5)), "a b c");
}

TEST(Escape, BytesThatAreNoUtf8AreReplaced) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(escape("a\xFFz"), "a" + mark + "z");
  EXPECT_EQ(escape("\xC3"), mark);             // cut
  EXPECT_EQ(escape("\xC0\xBC"), mark + mark);  // overlong '<'
  EXPECT_EQ(escape("\xE0\x80\xBC"), mark + mark + mark);
  EXPECT_EQ(escape("\xED\xA0\x80"), mark + mark + mark);  // surrogate
  EXPECT_EQ(escape("\xF4\x90\x80\x80"), mark + mark + mark + mark);
  EXPECT_EQ(escape("\xE4\xB8<"), mark + mark + "&lt;");
}

TEST(Base64, KnownValues) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xFF\xFE"), "//4=");
}

}  // namespace
}  // namespace coterie::report
