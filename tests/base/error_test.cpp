// SPDX-License-Identifier: Apache-2.0
#include "coterie/base/error.hpp"

#include <gtest/gtest.h>

#include "coterie/base/hash.hpp"
#include "coterie/base/ids.hpp"

namespace coterie {
namespace {

TEST(Error, CodesMapToExitCodes) {
  EXPECT_EQ(exit_code_of(ErrorCode::kBadInput), 2);
  EXPECT_EQ(exit_code_of(ErrorCode::kIo), 2);
  EXPECT_EQ(exit_code_of(ErrorCode::kInfeasible), 3);
  EXPECT_EQ(exit_code_of(ErrorCode::kInternal), 1);
}

TEST(Error, CheckSaysConditionAndValues) {
  const int found = 3;
  try {
    COTERIE_CHECK(found == 4, "found ", found);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(error.what()).find("found == 4"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("found 3"), std::string::npos);
  }
}

TEST(Ids, KindsDoNotMix) {
  static_assert(!std::is_convertible_v<ExpertId, DeviceId>);
  EXPECT_LT(ExpertId(1), ExpertId(2));
  EXPECT_EQ(join_message("expert ", ExpertId(7)), "expert 7");
}

TEST(Hash, IsIndependentOfPieces) {
  EXPECT_EQ(Hash().add("ab").add("c").value(), Hash().add("abc").value());
  EXPECT_NE(Hash().add("abc").value(), Hash().add("abd").value());
  EXPECT_EQ(Hash().add("abc").hex().size(), 16U);
}

}  // namespace
}  // namespace coterie
